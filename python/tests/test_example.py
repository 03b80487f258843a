"""examples/kopf, resident and behind a source."""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.conftest import HERE, Cluster, Operator, until

EXAMPLE = (HERE / "../../examples/kopf").resolve()


@pytest.fixture(scope="session")
def notices(cluster: Cluster) -> Cluster:
    cluster.apply_definition(yaml.safe_load((EXAMPLE / "config/crd/notices.yaml").read_text()))
    return cluster


@pytest.mark.parametrize("form", ["resident", "serverless"])
def test_notices(form: str, notices: Cluster, serverless: Callable[..., Operator]) -> None:
    """A Notice waits for its signature, is published, changed, archived and withdrawn."""
    namespace = notices.namespace(f"notices-{form}")
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    path = f"/apis/examples.reschedule.dev/v1/namespaces/{namespace}/notices"
    handlers = str(pathlib.Path(EXAMPLE, "handlers.py"))
    if form == "resident":
        environment = {"KUBECONFIG": notices.kubeconfig}
        operator = Operator(["kopf", "run", "-n", namespace, "--standalone", handlers], environment)
    else:
        operator = serverless("-n", namespace, file=handlers)
        source = yaml.safe_load((EXAMPLE / "config/serverless/source.yaml").read_text())
        notices.watch(namespace, operator.url, source["spec"]["watch"]["resources"])
    try:
        sample: Any = yaml.safe_load((EXAMPLE / "config/samples/hello.yaml").read_text())
        sample["spec"]["archive"] = "archive"
        notices.create(path, sample)

        def progress() -> bool:
            annotations = notices.call("GET", f"{path}/hello")["metadata"].get("annotations", {})
            return "the ConfigMap signature is not there" in annotations.get("kopf.zalando.org/publish", "")

        until("it waits for the signature", progress)
        notices.create(maps, {"metadata": {"name": "signature"}, "data": {"text": "bye"}})

        def text() -> Any:
            return ((notices.call("GET", f"{maps}/hello-notice") or {}).get("data") or {}).get("text")

        until("it is published", lambda: text() == "hello\nbye")
        until("its status says so", lambda: notices.call("GET", f"{path}/hello").get("status", {}).get("publish"))
        notices.patch(f"{path}/hello", {"spec": {"text": "good day"}})
        until("the change is published", lambda: text() == "good day\nbye")
        notices.create(maps, {"metadata": {"name": "archive"}, "data": {}})
        notices.call("DELETE", f"{path}/hello")
        until("it is gone", lambda: notices.call("GET", f"{path}/hello") is None)
        assert notices.call("GET", f"{maps}/archive")["data"] == {"hello": "good day"}
    finally:
        operator.kill()
