"""A Notice becomes a ConfigMap with its text: an operator for kopf run. Nothing in it is about deliveries."""

import pathlib

import kopf
import pykube

ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
NOTICES = ("examples.reschedule.dev", "v1", "notices")


def api():
    config = pykube.KubeConfig.from_service_account() if ACCOUNT.exists() else pykube.KubeConfig.from_env()
    return pykube.HTTPClient(config)


def rendered(spec, namespace):
    """The text, with the signature from another ConfigMap, which may come later."""
    text = spec.get("text", "")
    if not text:
        raise kopf.PermanentError("spec.text is empty")
    name = spec.get("signature")
    if name is None:
        return text
    signature = pykube.ConfigMap.objects(api()).filter(namespace=namespace).get_or_none(name=name)
    if signature is None:
        raise kopf.TemporaryError(f"the ConfigMap {name} is not there", delay=5)
    return text + "\n" + signature.obj["data"]["text"]


def write(name, namespace, text):
    body = {"metadata": {"name": f"{name}-notice", "namespace": namespace}, "data": {"text": text}}
    kopf.adopt(body)  # it goes with its Notice
    found = pykube.ConfigMap.objects(api()).filter(namespace=namespace).get_or_none(name=f"{name}-notice")
    if found is None:
        pykube.ConfigMap(api(), body).create()
    elif found.obj.get("data") != body["data"]:
        found.patch({"data": body["data"]})


@kopf.on.create(*NOTICES)
@kopf.on.update(*NOTICES)
def publish(name, namespace, spec, **_):
    write(name, namespace, rendered(spec, namespace))
    return {"text": spec["text"]}


# Another hand may have changed the ConfigMap, or the signature.
@kopf.timer(*NOTICES, interval=30, initial_delay=30)
def repair(name, namespace, spec, **_):
    write(name, namespace, rendered(spec, namespace))


@kopf.on.delete(*NOTICES)
def withdraw(name, namespace, spec, logger, **_):
    archive = spec.get("archive")
    if archive is None:
        return
    found = pykube.ConfigMap.objects(api()).filter(namespace=namespace).get_or_none(name=archive)
    if found is None:
        raise kopf.TemporaryError(f"the ConfigMap {archive} is not there", delay=5)
    found.patch({"data": {name: spec["text"]}})
    logger.info("archived")
