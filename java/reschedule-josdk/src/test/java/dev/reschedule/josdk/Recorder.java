package dev.reschedule.josdk;

/** Takes the runs of an object, in their order. */
interface Recorder {
  void record(String object, String run);
}
