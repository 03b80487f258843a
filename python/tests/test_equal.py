"""The same operator resident, behind a source, and behind it with a process for every delivery."""

import functools
import http.server
import pathlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Cluster, Operator, free_port, send, until

PATH = "/apis/test.reschedule.dev/v1/namespaces/{}/cases"

# What each object says, and the runs that it must have, whatever operator there is.
SPECS: dict[str, dict[str, object]] = {
    "plain": {},
    "retry": {"create": ["temporary:1", "temporary:0.5", "ok"]},
    "broken": {"create": ["error", "error", "ok"]},
    "exhausted": {"create": ["error", "error", "error", "error", "error"]},
    "permanent": {"create": ["permanent"]},
    "changed": {"update": ["temporary:0.5", "ok"]},
    "parts": {"parts": ["temporary:0.5", "ok"]},
    "deleted": {"delete": ["temporary:0.5", "ok"]},
    "colored": {"color": "red"},
    "labelled": {},
}
RUNS: dict[str, list[str]] = {
    "plain": ["create 0"],
    "retry": ["create 0", "create 1", "create 2"],
    "broken": ["create 0", "create 1", "create 2"],
    "exhausted": ["create 0", "create 1", "create 2", "create 3"],
    "permanent": ["create 0"],
    "changed": ["create 0", "update 0", "update 1"],
    "parts": ["create 0", "part 0", "part 1"],
    "deleted": ["create 0", "delete 0", "delete 1"],
    "colored": ["color:None->red 0", "color:red->blue 0", "create 0", "update 0"],
    "labelled": ["create 0", "update 0"],
}
# The handlers of one change that fail one after another are retried by their own times.
SORTED = {"colored"}
WAITS = {"retry": [1.0, 0.5], "broken": [0.5, 0.5], "exhausted": [0.5, 0.5, 0.5]}


class Cold:
    """A sink that starts a process for each delivery, as a Service at zero does at worst."""

    def __init__(self, start: Callable[..., Operator], namespace: str) -> None:
        self.port = free_port()
        self.started = 0
        self.journal: pathlib.Path | None = None
        cold = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                operator = start("-n", namespace, journal=cold.journal)
                cold.journal = operator.journal
                cold.started += 1
                status, headers, text = send(operator.url, self.headers["Ce-Reschedulekey"])
                operator.kill()
                self.send_response(status)
                if "Reschedule-After" in headers:
                    self.send_header("Reschedule-After", headers["Reschedule-After"])
                self.end_headers()
                self.wfile.write(text.encode() if status != 204 else b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def lines(self, name: str) -> list[list[str]]:
        if self.journal is None:
            return []
        return Operator.lines(self, name)  # type: ignore[arg-type]

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture
def resident(cases: Cluster) -> Iterator[Operator]:
    namespace = cases.namespace("resident")
    operator = Operator(
        ["kopf", "run", "-n", namespace, "--standalone", "handlers.py"], {"KUBECONFIG": cases.kubeconfig}
    )
    until("kopf watches", lambda: "Initial authentication has finished" in operator.said)
    yield operator
    operator.kill()


def scenario(cluster: Cluster, namespace: str, lines: Callable[[str], list[list[str]]], names: list[str]) -> None:
    """Makes the objects, changes and deletes some, and compares their runs."""
    path = PATH.format(namespace)
    for name in names:
        cluster.create(
            path,
            {"apiVersion": "test.reschedule.dev/v1", "kind": "Case", "metadata": {"name": name}, "spec": SPECS[name]},
        )

    def handled(name: str) -> bool:
        """Whether kopf has written that it handled the object as it is."""
        annotations = (cluster.call("GET", f"{path}/{name}") or {"metadata": {}})["metadata"].get("annotations", {})
        return "kopf.zalando.org/last-handled-configuration" in annotations

    for name in names:
        until(f"{name} is handled", functools.partial(handled, name))
    for name, change in {
        "changed": {"spec": {"size": 2}},
        "colored": {"spec": {"color": "blue"}},
        "labelled": {"metadata": {"labels": {"team": "a"}}},
    }.items():
        if name in names:
            cluster.patch(f"{path}/{name}", change)
    if "deleted" in names:
        cluster.call("DELETE", f"{path}/deleted")
        until("the object is gone", lambda: cluster.call("GET", f"{path}/deleted") is None)

    def runs(name: str) -> list[str]:
        found = [f"{handler} {retry}" for _, handler, retry, _ in lines(name)]
        return sorted(found) if name in SORTED else found

    def ran(name: str) -> bool:
        return len(lines(name)) >= len(RUNS[name])

    for name in names:
        until(f"{name} has run {RUNS[name]}", functools.partial(ran, name))
    time.sleep(1)  # a run too many would come by now
    assert {n: runs(n) for n in names} == {n: RUNS[n] for n in names}
    for name in names:
        times = [float(t) for _, _, _, t in lines(name)]
        for i, wait in enumerate(WAITS.get(name, [])):
            assert times[i + 1] - times[i] >= wait - 0.01, (
                f"{name} ran again {times[i + 1] - times[i]} s later, not {wait}"
            )


def test_resident(cases: Cluster, resident: Operator) -> None:
    """kopf run: what the others are compared with."""
    scenario(cases, "resident", resident.lines, list(SPECS))


def test_behind_a_source(cases: Cluster, serverless: Callable[..., Operator]) -> None:
    """One process behind a source with spec.watch."""
    namespace = cases.namespace("behind")
    operator = serverless("-n", namespace)
    cases.watch(namespace, operator.url, [{"apiVersion": "test.reschedule.dev/v1", "kind": "Case"}])
    scenario(cases, namespace, operator.lines, list(SPECS))


def test_a_process_for_each_delivery(cases: Cluster, serverless: Callable[..., Operator]) -> None:
    """No process remembers anything: retries go on, and a change is told from what was there."""
    namespace = cases.namespace("cold")
    cold = Cold(serverless, namespace)
    cases.watch(
        namespace,
        f"http://127.0.0.1:{cold.port}",
        [{"apiVersion": "test.reschedule.dev/v1", "kind": "Case", "changes": "Spec"}],
    )
    scenario(cases, namespace, cold.lines, ["broken", "deleted"])
    assert cold.started > 5
    cold.close()
