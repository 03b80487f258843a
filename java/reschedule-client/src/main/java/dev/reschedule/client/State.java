package dev.reschedule.client;

/** The state of a key. */
public enum State {
  /** Its time has not come. */
  WAITING("waiting"),

  /** Its time has come. It is queued, or between two attempts. */
  DUE("due"),

  /** It is being delivered, and nothing waits behind it. */
  IN_FLIGHT("inFlight");

  private final String wire;

  State(String wire) {
    this.wire = wire;
  }

  /** Returns the word that the schedule API has for it. */
  @Override
  public String toString() {
    return wire;
  }
}
