package dev.reschedule.quarkus;

import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import jakarta.enterprise.context.ApplicationScoped;
import jakarta.enterprise.inject.Produces;
import jakarta.inject.Inject;
import jakarta.inject.Singleton;

import org.junit.jupiter.api.Test;

import io.javaoperatorsdk.operator.Operator;
import io.javaoperatorsdk.operator.api.config.ConfigurationService;
import io.quarkus.arc.ClientProxy;
import io.quarkus.arc.profile.IfBuildProfile;
import io.quarkus.test.common.QuarkusTestResource;
import io.quarkus.test.junit.QuarkusTest;
import io.quarkus.test.junit.QuarkusTestProfile;
import io.quarkus.test.junit.TestProfile;

import dev.reschedule.josdk.RescheduleOperator;

/** A Quarkus application with the module on its class path, and an Operator bean of its own. */
@QuarkusTest
@TestProfile(OwnOperatorTest.Own.class)
@QuarkusTestResource(ClusterResource.class)
class OwnOperatorTest {

  /** The profile that has the bean. */
  public static class Own implements QuarkusTestProfile {
    @Override
    public String getConfigProfile() {
      return "own";
    }
  }

  /** The operator of the application. */
  static class OwnOperator extends RescheduleOperator {
    OwnOperator(ConfigurationService configuration) {
      super(configuration);
    }
  }

  /** Makes the bean. */
  @Singleton
  @IfBuildProfile("own")
  static class Producer {
    @Produces
    @ApplicationScoped
    Operator operator(ConfigurationService configuration) {
      return new OwnOperator(configuration).withPort(0);
    }
  }

  @Inject Operator operator;

  /** The application's own bean stays. */
  @Test
  void anOwnBeanStays() {
    assertInstanceOf(OwnOperator.class, ClientProxy.unwrap(operator));
  }
}
