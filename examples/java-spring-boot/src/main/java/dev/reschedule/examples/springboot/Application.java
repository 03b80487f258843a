package dev.reschedule.examples.springboot;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;

import dev.reschedule.examples.webpage.WebPageReconciler;

/** The operator of web pages as a Spring Boot application. */
@SpringBootApplication
public class Application {

  @Bean
  WebPageReconciler webPages() {
    return new WebPageReconciler();
  }

  public static void main(String[] args) {
    SpringApplication.run(Application.class, args);
  }
}
