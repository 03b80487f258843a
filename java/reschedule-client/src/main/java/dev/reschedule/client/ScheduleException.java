package dev.reschedule.client;

import java.time.Duration;

/**
 * A call that did not succeed. Each code of the schedule API (RFC 9457) has a class of its own; another answer is this class
 * itself. A call changed nothing if its exception is one with a code, except {@link Unavailable}.
 */
public class ScheduleException extends RuntimeException {

  private static final long serialVersionUID = 1L;

  private final int status;
  private final String code;
  private final String field;
  private final Duration retryAfter;

  ScheduleException(int status, String code, String field, String detail, Duration retryAfter, Throwable cause) {
    super((status == 0 ? "" : status + " ") + (code.isEmpty() ? "" : code + ": ") + detail, cause);
    this.status = status;
    this.code = code;
    this.field = field;
    this.retryAfter = retryAfter;
  }

  /** Returns the status of the HTTP answer, 0 if there was none. */
  public int status() {
    return status;
  }

  /** Returns the code of the schedule API; empty when no source answered and the status alone is not certain. */
  public String code() {
    return code;
  }

  /** Returns the field, parameter or header at fault, or null. */
  public String field() {
    return field;
  }

  /** Returns after which time another try may succeed, or null. */
  public Duration retryAfter() {
    return retryAfter;
  }

  static ScheduleException of(
      int status, String code, String field, String detail, Duration retryAfter, Throwable cause) {
    return switch (code) {
      case "invalid_argument" -> new InvalidArgument(status, field, detail, retryAfter, cause);
      case "unauthenticated" -> new Unauthenticated(status, field, detail, retryAfter, cause);
      case "permission_denied" -> new PermissionDenied(status, field, detail, retryAfter, cause);
      case "not_found" -> new NotFound(status, field, detail, retryAfter, cause);
      case "method_not_allowed" -> new MethodNotAllowed(status, field, detail, retryAfter, cause);
      case "already_exists" -> new AlreadyExists(status, field, detail, retryAfter, cause);
      case "attempts_exhausted" -> new AttemptsExhausted(status, field, detail, retryAfter, cause);
      case "precondition_failed" -> new PreconditionFailed(status, field, detail, retryAfter, cause);
      case "too_large" -> new TooLarge(status, field, detail, retryAfter, cause);
      case "unsupported_media_type" -> new UnsupportedMediaType(status, field, detail, retryAfter, cause);
      case "quota_exceeded" -> new QuotaExceeded(status, field, detail, retryAfter, cause);
      case "unavailable" -> new Unavailable(status, field, detail, retryAfter, cause);
      case "storage_full" -> new StorageFull(status, field, detail, retryAfter, cause);
      default -> new ScheduleException(status, code, field, detail, retryAfter, cause);
    };
  }

  /** {@link #field} names what to correct. */
  public static final class InvalidArgument extends ScheduleException {
    private static final long serialVersionUID = 1L;

    InvalidArgument(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "invalid_argument", field, detail, retryAfter, cause);
    }
  }

  /** There is no token, or not a valid one. */
  public static final class Unauthenticated extends ScheduleException {
    private static final long serialVersionUID = 1L;

    Unauthenticated(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "unauthenticated", field, detail, retryAfter, cause);
    }
  }

  /** The caller has no access to the source. */
  public static final class PermissionDenied extends ScheduleException {
    private static final long serialVersionUID = 1L;

    PermissionDenied(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "permission_denied", field, detail, retryAfter, cause);
    }
  }

  /** Nothing is scheduled under the key, or there is no such source. */
  public static final class NotFound extends ScheduleException {
    private static final long serialVersionUID = 1L;

    NotFound(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "not_found", field, detail, retryAfter, cause);
    }
  }

  /** Something between changed the request. */
  public static final class MethodNotAllowed extends ScheduleException {
    private static final long serialVersionUID = 1L;

    MethodNotAllowed(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "method_not_allowed", field, detail, retryAfter, cause);
    }
  }

  /** The policy is fail, and the key is scheduled; or what is redriven is older than what the key has. */
  public static final class AlreadyExists extends ScheduleException {
    private static final long serialVersionUID = 1L;

    AlreadyExists(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "already_exists", field, detail, retryAfter, cause);
    }
  }

  /** The attempts of the back-off are used up. */
  public static final class AttemptsExhausted extends ScheduleException {
    private static final long serialVersionUID = 1L;

    AttemptsExhausted(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "attempts_exhausted", field, detail, retryAfter, cause);
    }
  }

  /** A condition does not hold: read the key and decide again. */
  public static final class PreconditionFailed extends ScheduleException {
    private static final long serialVersionUID = 1L;

    PreconditionFailed(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "precondition_failed", field, detail, retryAfter, cause);
    }
  }

  /** Send a reference in the place of the data. */
  public static final class TooLarge extends ScheduleException {
    private static final long serialVersionUID = 1L;

    TooLarge(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "too_large", field, detail, retryAfter, cause);
    }
  }

  /** Something between changed the request. */
  public static final class UnsupportedMediaType extends ScheduleException {
    private static final long serialVersionUID = 1L;

    UnsupportedMediaType(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "unsupported_media_type", field, detail, retryAfter, cause);
    }
  }

  /** The source is full; replacing a key is still possible. */
  public static final class QuotaExceeded extends ScheduleException {
    private static final long serialVersionUID = 1L;

    QuotaExceeded(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "quota_exceeded", field, detail, retryAfter, cause);
    }
  }

  /** Not now. The change may or may not have been made. */
  public static final class Unavailable extends ScheduleException {
    private static final long serialVersionUID = 1L;

    Unavailable(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "unavailable", field, detail, retryAfter, cause);
    }
  }

  /** The adapter's disk is full. */
  public static final class StorageFull extends ScheduleException {
    private static final long serialVersionUID = 1L;

    StorageFull(int status, String field, String detail, Duration retryAfter, Throwable cause) {
      super(status, "storage_full", field, detail, retryAfter, cause);
    }
  }
}
