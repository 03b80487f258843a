package dev.reschedule.client;

/**
 * A key and its request, in a call for many.
 *
 * @param key the key
 * @param request when it becomes due
 */
public record Item(String key, Request request) {}
