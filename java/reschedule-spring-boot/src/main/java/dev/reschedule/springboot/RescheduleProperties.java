package dev.reschedule.springboot;

import java.util.List;

import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * The properties reschedule.*.
 *
 * @param audience see {@link dev.reschedule.josdk.RescheduleOperator#withAudience}
 * @param subjects the accounts that may send, if not every RescheduleSource of the operator's own namespace
 * @param port the port of deliveries; null: the port in the environment variable PORT
 * @param retryBySource see {@link dev.reschedule.josdk.RescheduleOperator#withRetryBySource}
 */
@ConfigurationProperties("reschedule")
public record RescheduleProperties(
    String audience, @DefaultValue List<String> subjects, Integer port, @DefaultValue("false") boolean retryBySource) {}
