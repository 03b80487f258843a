package dev.reschedule.josdk;

import io.fabric8.kubernetes.client.CustomResource;
import io.fabric8.kubernetes.model.annotation.Group;
import io.fabric8.kubernetes.model.annotation.Version;

/** A kind of the tests, without a namespace. */
@Group("sample.reschedule.dev")
@Version("v1")
public class Tick extends CustomResource<Site.Spec, Site.Status> {}
