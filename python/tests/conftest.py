"""A real API server with the real controller and adapter, and operators as processes."""

import base64
import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

HERE = pathlib.Path(__file__).parent
PATIENCE = 30.0


def until(what: str, so: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Waits until something is so, and returns it."""
    end = time.monotonic() + patience
    while True:
        found = so()
        if found:
            return found
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.02)


class Cluster:
    """The API server, with the rights of an administrator."""

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig = kubeconfig
        config = yaml.safe_load(pathlib.Path(kubeconfig).read_text())
        self.url = config["clusters"][0]["cluster"]["server"]
        user = config["users"][0]["user"]
        cluster = config["clusters"][0]["cluster"]
        if "certificate-authority-data" in cluster:
            self.authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        else:
            self.authority = pathlib.Path(cluster["certificate-authority"]).read_text()
        self._tls = ssl.create_default_context(cadata=self.authority)
        self.token = user.get("token") or pathlib.Path(user["tokenFile"]).read_text()

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Returns the answer, None if the object is not there."""
        request = urllib.request.Request(
            self.url + path,
            json.dumps(body).encode() if body is not None else None,
            {"Authorization": f"Bearer {self.token}", "Content-Type": content_type},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._tls) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            if e.code == 404:
                return None
            if e.code == 429:  # a kind that is new
                time.sleep(0.2)
                return self.call(method, path, body, content_type)
            raise AssertionError(f"{method} {path}: {e.code} {e.read().decode()}") from e

    def create(self, path: str, body: Any) -> Any:
        made = self.call("POST", path, body)
        assert made is not None, f"there is no {path}"
        return made

    def patch(self, path: str, body: Any) -> Any:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def namespace(self, name: str) -> str:
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def define(self, group: str, kind: str, scope: str = "Namespaced") -> None:
        """Defines a kind whose spec and status may hold anything, and waits until it is served."""
        plural = kind.lower() + "s"
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}},
                        "schema": {
                            "openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}
                        },
                    }
                ],
            },
        }
        self.apply_definition(definition)

    def apply_definition(self, definition: Any) -> None:
        self.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        spec = definition["spec"]
        path = f"/apis/{spec['group']}/v1/{spec['names']['plural']}"
        until(f"{path} is served", lambda: self.call("GET", path))

    def watch(self, namespace: str, uri: str, resources: list[dict[str, Any]], name: str = "source") -> None:
        """Makes a source with an account of its own, and waits until it is ready."""
        groups = sorted({r["apiVersion"].rpartition("/")[0] for r in resources})
        self.create(
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            {
                "metadata": {"name": f"{namespace}-watcher"},
                "rules": [{"apiGroups": groups, "resources": ["*"], "verbs": ["get", "list", "watch"]}],
            },
        )
        self.create(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {
                "metadata": {"name": f"{namespace}-watcher"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": f"{namespace}-watcher",
                },
                "subjects": [{"kind": "ServiceAccount", "name": "watcher", "namespace": namespace}],
            },
        )
        self.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "watcher"}})
        path = f"/apis/sources.reschedule.dev/v1alpha1/namespaces/{namespace}/reschedulesources"
        self.create(
            path,
            {
                "apiVersion": "sources.reschedule.dev/v1alpha1",
                "kind": "RescheduleSource",
                "metadata": {"name": name},
                "spec": {"sink": {"uri": uri}, "watch": {"serviceAccountName": "watcher", "resources": resources}},
            },
        )

        def ready() -> bool:
            status = self.call("GET", f"{path}/{name}").get("status", {})
            return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))

        try:
            until("the source is ready", ready, 20)
        except AssertionError:
            raise AssertionError(self.call("GET", f"{path}/{name}")["status"]) from None


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One for all tests of a process."""
    program = os.environ.get("CLUSTER_BINARY")
    assert program, "CLUSTER_BINARY is not set: make python builds it"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert process.stdin is not None and process.stdout is not None
        line = process.stdout.readline()
        if not line:
            log.seek(0)
            raise AssertionError(f"the cluster is not ready: {log.read().decode()}")
        try:
            yield Cluster(json.loads(line)["kubeconfig"])
        finally:
            process.stdin.close()  # it ends with its standard input
            process.wait(30)


@pytest.fixture(scope="session")
def cases(cluster: Cluster) -> Cluster:
    cluster.define("test.reschedule.dev", "Case")
    return cluster


class Operator:
    """An operator as a process, with the journal of its handlers."""

    def __init__(
        self, command: list[str], environment: dict[str, str], port: int = 0, journal: pathlib.Path | None = None
    ) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.journal = journal or pathlib.Path(tempfile.mkstemp(prefix="journal-")[1])
        self._said: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, **environment, "JOURNAL": str(self.journal), "PORT": str(port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=HERE,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)

    @property
    def said(self) -> str:
        return "".join(self._said)

    def lines(self, name: str) -> list[list[str]]:
        """The runs of an object: its name, the handler, the retry, the time."""
        return [x for x in (line.split() for line in self.journal.read_text().splitlines()) if x[0] == name]

    def ready(self) -> "Operator":
        def answers() -> bool:
            assert self._process.poll() is None, self.said
            try:
                with urllib.request.urlopen(self.url, timeout=5):
                    return True
            except OSError:
                return False

        until("the operator answers", answers)
        return self

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the operator went on: {self.said}") from None


def free_port() -> int:
    """Finds a port below the range of outgoing connections: none takes it before the operator listens."""
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("", port))
            return port


@pytest.fixture
def serverless(cluster: Cluster) -> Iterator[Callable[..., Operator]]:
    """Starts operators behind a source; each ends with the test."""
    running: list[Operator] = []

    def start(*args: str, file: str = "handlers.py", journal: pathlib.Path | None = None) -> Operator:
        operator = Operator(["reschedule_kopf", file, *args], {"KUBECONFIG": cluster.kubeconfig}, free_port(), journal)
        running.append(operator)
        return operator.ready()

    yield start
    for operator in running:
        operator.kill()
        print(operator.said)  # pytest shows it when the test failed


def send(
    url: str, key: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    """Sends a delivery as a source does, and returns status, headers and body of the answer."""
    request = urllib.request.Request(
        url,
        json.dumps(body or {}).encode(),
        {"Ce-Reschedulekey": key, "Content-Type": "application/json", **(headers or {})},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, dict(e.headers), e.read().decode()


def wait_of(headers: dict[str, str]) -> float:
    """The seconds of Reschedule-After."""
    value = headers["Reschedule-After"]
    assert value.endswith("ms"), value
    return int(value.removesuffix("ms")) / 1000
