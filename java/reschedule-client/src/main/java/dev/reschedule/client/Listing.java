package dev.reschedule.client;

/**
 * What to list.
 *
 * @param prefix only keys that begin with it; empty is all
 * @param order the order
 * @param pageSize keys in one call, 1 to 1000
 */
public record Listing(String prefix, Order order, int pageSize) {

  /** All keys, by key, 100 in a call. */
  public static final Listing ALL = new Listing("", Order.KEY, 100);

  /** Returns this listing of the keys that begin with a prefix. */
  public Listing withPrefix(String p) {
    return new Listing(p, order, pageSize);
  }

  /** Returns this listing in an order. */
  public Listing withOrder(Order o) {
    return new Listing(prefix, o, pageSize);
  }

  /** Returns this listing with another size of a page. */
  public Listing withPageSize(int n) {
    return new Listing(prefix, order, n);
  }
}
