package dev.reschedule.client;

/** The order of a list. */
public enum Order {
  /** By key. */
  KEY("key"),

  /** By the original due time. */
  DUE("due");

  private final String wire;

  Order(String wire) {
    this.wire = wire;
  }

  /** Returns the word that the schedule API has for it. */
  @Override
  public String toString() {
    return wire;
  }
}
