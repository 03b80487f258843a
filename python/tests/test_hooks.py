"""examples/hooks: a hook of shell-operator and a playbook of Ansible, with a real API server."""

import os
import pathlib
import subprocess
import sys
import urllib.parse
from typing import Any

import pytest
import yaml

from tests.conftest import HERE, Cluster, free_port, send, until

EXAMPLE = (HERE / "../../examples/hooks").resolve()
PATH = "/apis/test.reschedule.dev/v1/namespaces/{}/hookeds"


@pytest.fixture(scope="session")
def hooked(cluster: Cluster) -> Cluster:
    cluster.define("test.reschedule.dev", "Hooked")
    return cluster


@pytest.mark.parametrize("form", ["hook", "playbook"])
def test_hooks(form: str, hooked: Cluster, tmp_path: pathlib.Path) -> None:
    """Status 0 is a success, another one comes again, and an object that is gone is done with."""
    namespace = hooked.namespace(f"hooks-{form}")
    config = yaml.safe_load(pathlib.Path(hooked.kubeconfig).read_text())
    (tmp_path / "token").write_text(hooked.token)
    (tmp_path / "ca.crt").write_text(hooked.authority)
    port, journal = free_port(), tmp_path / "journal"
    environment = {
        **os.environ,
        "API": config["clusters"][0]["cluster"]["server"],
        "ACCOUNT": str(tmp_path),
        "PREFIX": "/apis/test.reschedule.dev/v1",
        "PLURAL": "hookeds",
        "TIMEOUT": "20",
        "PORT": str(port),
        "JOURNAL": str(journal),
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible"),
    }
    file = str(EXAMPLE / {"hook": "hook.sh", "playbook": "playbook.yaml"}[form])
    process = subprocess.Popen([sys.executable, str(EXAMPLE / "function.py"), form, file], env=environment)
    url = f"http://127.0.0.1:{port}"
    try:

        def deliver(name: str) -> tuple[int, str | None]:
            key = urllib.parse.quote(f"Hooked/{namespace}/{name}", safe="")
            status, headers, _ = send(url, key)
            return status, headers.get("Reschedule-After")

        def make(name: str, spec: Any) -> None:
            body = {"apiVersion": "test.reschedule.dev/v1", "kind": "Hooked", "metadata": {"name": name}, "spec": spec}
            hooked.create(PATH.format(namespace), body)

        def listens() -> bool:
            try:
                return send(url, "")[0] == 400
            except OSError:
                return False

        until("it listens", listens)
        make("fine", {"say": "hello", "every": "5m"})
        make("failing", {"say": "fail"})
        assert deliver("fine") == (204, None if form == "hook" else "5m")
        assert "hello" in journal.read_text()
        assert deliver("failing") == (503, None)
        assert deliver("absent") == (204, "never")
        assert ("absent Deleted" if form == "hook" else "gone") in journal.read_text()
    finally:
        process.terminate()
        assert process.wait(10) == 0
