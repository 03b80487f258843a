package dev.reschedule.josdk;

import dev.reschedule.testing.Cluster;

/** The cluster, with the kinds of these tests. */
final class Kube {

  private static boolean defined;

  private Kube() {}

  static synchronized Cluster get() throws Exception {
    Cluster c = Cluster.get();
    if (!defined) {
      c.define("sample.reschedule.dev", "Site", "Namespaced");
      c.define("sample.reschedule.dev", "Page", "Namespaced");
      c.define("sample.reschedule.dev", "Tick", "Cluster");
      defined = true;
    }
    return c;
  }
}
