package dev.reschedule.client;

/** What decides about the time when a key already has a waiting occurrence. */
public enum Policy {
  /** The new time, and the request is the whole new occurrence. */
  REPLACE("replace"),

  /** The sooner time. */
  EARLIEST("earliest"),

  /** The later time. */
  LATEST("latest"),

  /** No change at all. */
  KEEP("keep"),

  /** {@link ScheduleException.AlreadyExists}. */
  FAIL("fail");

  private final String wire;

  Policy(String wire) {
    this.wire = wire;
  }

  /** Returns the word that the schedule API has for it. */
  @Override
  public String toString() {
    return wire;
  }
}
