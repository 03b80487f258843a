package dev.reschedule.client;

/** What must hold for a change to be made; else {@link ScheduleException.PreconditionFailed}. */
public final class Condition {

  final String header;
  final String value;

  private Condition(String header, String value) {
    this.header = header;
    this.value = value;
  }

  /** Requires the key to have this revision. */
  public static Condition ifRevision(long revision) {
    return new Condition("If-Match", '"' + Long.toUnsignedString(revision) + '"');
  }

  /** Requires the key to be scheduled or in flight. */
  public static Condition ifPresent() {
    return new Condition("If-Match", "*");
  }

  /** Requires the key to be neither scheduled nor in flight. It is for schedule only. */
  public static Condition ifAbsent() {
    return new Condition("If-None-Match", "*");
  }

  /** Requires the key, if it is scheduled, to be for the object with that uid. It is for cancel only. */
  public static Condition ifUid(String uid) {
    return new Condition(null, uid);
  }
}
