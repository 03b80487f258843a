package dev.reschedule.client;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** A bearer token. A file is read for every try, because the kubelet renews the token of a projected volume. */
interface Token {

  /** Returns the token, or null if there is none. */
  String read();

  static Token file(Path path) {
    return () -> {
      try {
        return check(Files.readString(path).strip(), path.toString());
      } catch (IOException e) {
        throw new IllegalStateException("the token cannot be read (is the volume mounted?): " + e, e);
      }
    };
  }

  static Token fixed(String token) {
    check(token, "the argument of token");
    return () -> token;
  }

  /** Requires a token that a header can carry. The exception does not show it. */
  private static String check(String token, String from) {
    if (token.isEmpty()) {
      throw new IllegalStateException("the token is empty: " + from);
    }
    if (!token.chars().allMatch(c -> c > ' ' && c <= '~')) {
      throw new IllegalStateException("the token has blanks or characters other than ASCII: " + from);
    }
    return token;
  }
}
