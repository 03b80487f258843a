package dev.reschedule.client;

/** The result of a request. */
public enum Result {
  /** Nothing waited. */
  CREATED("created"),

  /** Something waited, and has a new time. */
  REPLACED("replaced"),

  /** The time stayed, the event is new. */
  MERGED("merged"),

  /** Nothing changed. */
  KEPT("kept");

  private final String wire;

  Result(String wire) {
    this.wire = wire;
  }

  /** Returns the word that the schedule API has for it. */
  @Override
  public String toString() {
    return wire;
  }
}
