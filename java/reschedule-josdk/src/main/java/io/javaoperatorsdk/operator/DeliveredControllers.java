package io.javaoperatorsdk.operator;

import java.lang.reflect.Field;

import io.javaoperatorsdk.operator.processing.Controller;

/** Registers a controller that was made elsewhere. It is in this package for JOSDK's ControllerManager. */
public final class DeliveredControllers {

  private DeliveredControllers() {}

  /** Adds the controller to the operator, which starts and stops it. */
  public static void add(Operator operator, Controller<?> controller) {
    try {
      Field f = Operator.class.getDeclaredField("controllerManager"); // read, not written
      f.setAccessible(true);
      ((ControllerManager) f.get(operator)).add(controller);
    } catch (ReflectiveOperationException e) {
      throw new IllegalStateException("this version of JOSDK does not fit: docs/josdk.md names the versions", e);
    }
  }
}
