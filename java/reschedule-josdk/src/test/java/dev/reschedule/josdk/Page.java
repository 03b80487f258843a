package dev.reschedule.josdk;

import io.fabric8.kubernetes.api.model.Namespaced;
import io.fabric8.kubernetes.client.CustomResource;
import io.fabric8.kubernetes.model.annotation.Group;
import io.fabric8.kubernetes.model.annotation.Version;

/** A kind of the tests, with a managed dependent. */
@Group("sample.reschedule.dev")
@Version("v1")
public class Page extends CustomResource<Site.Spec, Site.Status> implements Namespaced {}
