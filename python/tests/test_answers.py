"""What a handler does, and what its delivery is answered with: the table of docs/kopf.md."""

import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Cluster, Operator, send, until, wait_of

PATH = "/apis/test.reschedule.dev/v1/namespaces/answers/cases"


@pytest.fixture(scope="session")
def answers(cases: Cluster) -> Cluster:
    cases.namespace("answers")
    return cases


@pytest.fixture
def operator(answers: Cluster, serverless: Callable[..., Operator]) -> Operator:
    return serverless("-n", "answers", "--timeout", "4", "--grace", "1")


class Object:
    """An object, and deliveries about it."""

    def __init__(self, cluster: Cluster, operator: Operator, name: str, spec: dict[str, Any]) -> None:
        self.cluster, self.operator, self.name = cluster, operator, name
        meta = {"name": name}
        cluster.create(PATH, {"apiVersion": "test.reschedule.dev/v1", "kind": "Case", "metadata": meta, "spec": spec})

    def deliver(self) -> tuple[int, dict[str, str], str]:
        return send(self.operator.url, f"Case/answers/{self.name}")

    def read(self) -> Any:
        return self.cluster.call("GET", f"{PATH}/{self.name}")

    def runs(self) -> list[str]:
        return [f"{handler} {retry}" for _, handler, retry, _ in self.operator.lines(self.name)]


def test_changes(answers: Cluster, operator: Operator) -> None:
    """Success, retries, failures, deletion."""

    def case(name: str, spec: dict[str, Any]) -> Object:
        return Object(answers, operator, name, spec)

    fine = case("fine", {})
    assert fine.deliver()[0] == 204
    assert "Reschedule-After" not in fine.deliver()[1]
    assert fine.read()["status"] == {"create": {"generation": 1}}
    assert fine.read()["metadata"]["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]
    assert fine.runs() == ["create 0"]
    answers.patch(f"{PATH}/fine", {"spec": {"size": 1}})
    assert fine.deliver()[0] == 204
    assert fine.runs() == ["create 0", "update 0"]
    answers.call("DELETE", f"{PATH}/fine")
    status, headers, _ = fine.deliver()
    assert (status, headers["Reschedule-After"]) == (204, "never")
    assert fine.runs()[2:] == ["delete 0"]
    assert fine.read() is None
    assert fine.deliver()[1]["Reschedule-After"] == "never"

    temporary = case("temporary", {"create": ["temporary:30"]})
    status, headers, text = temporary.deliver()
    assert status == 503 and 29 < wait_of(headers) <= 30 and "not yet" in text
    status, headers, _ = temporary.deliver()  # too early: nothing runs, and the rest is waited for
    assert status == 503 and 25 < wait_of(headers) < 30
    assert temporary.runs() == ["create 0"]

    broken = case("broken", {"create": ["error"]})
    status, headers, text = broken.deliver()
    assert status == 503 and wait_of(headers) <= 0.5 and "it broke" in text

    permanent = case("permanent", {"create": ["permanent"]})
    status, headers, text = permanent.deliver()
    assert status == 422 and "Reschedule-After" not in headers and "create failed permanently: never" in text
    assert permanent.deliver()[0] == 204  # kopf has ended with this change

    exhausted = case("exhausted", {"create": ["temporary:0.2"] * 9})
    statuses: list[int] = []
    while not statuses or statuses[-1] == 503:
        status, headers, text = exhausted.deliver()
        statuses.append(status)
        time.sleep(wait_of(headers) if "Reschedule-After" in headers else 0)
    assert statuses[-1] == 422 and "will exceed 4 retries" in text
    assert exhausted.runs() == [f"create {i}" for i in range(4)]


def test_timers(answers: Cluster, operator: Operator) -> None:
    """Intervals, retries, initial delay, idle and sharp timers; a change moves none but idle ones.

    The times are so long that a busy machine does not reach them between two deliveries.
    """

    def case(name: str, spec: dict[str, Any]) -> Object:
        return Object(answers, operator, name, spec)

    every = case("every", {"timer": []})
    status, headers, _ = every.deliver()
    assert status == 204 and wait_of(headers) <= 4
    answers.patch(f"{PATH}/every", {"spec": {"size": 1}})
    status, headers, _ = every.deliver()
    assert status == 204 and 0 < wait_of(headers) <= 4
    assert every.runs().count("timer 0") == 1
    time.sleep(wait_of(headers))
    assert every.deliver()[0] == 204
    assert every.runs().count("timer 0") == 2
    assert "timer" in every.read()["status"]

    failing = case("failing", {"timer": ["error", "error", "error"]})
    statuses = []
    for _ in range(3):
        status, headers, text = failing.deliver()
        statuses.append(status)
        time.sleep(wait_of(headers))
    assert statuses == [503, 503, 422] and "it broke" in text
    assert wait_of(headers) > 0.5  # it goes on with its interval
    assert failing.deliver()[0] == 503
    assert [r for r in failing.runs() if r.startswith("timer")] == ["timer 0", "timer 1", "timer 2", "timer 0"]

    later = case("later", {"later": True})
    status, headers, _ = later.deliver()
    assert status == 204 and 40 < wait_of(headers) <= 50 and "later 0" not in later.runs()

    idle = case("idle", {"idle": True})
    first, began = wait_of(idle.deliver()[1]), time.monotonic()
    assert 20 < first <= 30
    time.sleep(1.2)
    answers.patch(f"{PATH}/idle", {"spec": {"size": 1}})
    second = wait_of(idle.deliver()[1])
    assert first - (time.monotonic() - began) + 1 < second <= 30
    assert "idle 0" not in idle.runs()

    sharp = case("sharp", {"sharp": True})
    assert 20 < wait_of(sharp.deliver()[1]) <= 29  # 30 s after its start, which was 1 s before its end

    answers.patch(f"{PATH}/later", {"spec": {"later": None}})  # it matches no longer
    assert "Reschedule-After" not in later.deliver()[1]
    assert not [a for a in later.read()["metadata"]["annotations"] if "timer" in a]


def test_what_is_no_delivery(operator: Operator) -> None:
    """A dead letter says what is wrong."""
    assert send(operator.url, "Case/answers/absent")[0] == 204
    for key, said in {
        "": "reschedulekey is missing",
        "Case": "Kind/namespace/name",
        "Other/answers/x": "no handler of this operator is for the kind Other",
        "Case//x": "no handler of this operator is for the kind Case",
        "Case/other/x": "only for objects of the namespaces answers",
    }.items():
        status, _, text = send(operator.url, key)
        assert status == 400 and said in text, key


def test_hanging_handlers(answers: Cluster, operator: Operator) -> None:
    """A run that takes too long is a 503, and its key has one run at a time; other objects are not held up."""
    hanging = Object(answers, operator, "hanging", {"create": ["hang:6"]})
    status, _, text = hanging.deliver()
    assert status == 503 and "longer than 4 s" in text
    assert Object(answers, operator, "beside", {}).deliver()[0] == 204
    until("the run has ended", lambda: hanging.deliver()[0] == 204)
    assert hanging.runs() == ["create 0"]

    for_ever = Object(answers, operator, "for-ever", {"create": ["hang:600"]})
    assert for_ever.deliver()[0] == 503
    began = time.monotonic()
    assert operator.terminate() != 0
    assert time.monotonic() - began < 15
    assert "the process ends without them: Case/answers/for-ever" in operator.said


def test_sigterm(operator: Operator) -> None:
    """An operator that has nothing to do ends at once."""
    assert operator.terminate() == 0, operator.said


def test_what_is_refused(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    """Daemons, indices and webhooks need a process all day, and the start says so."""
    for decorator, said in {
        "daemon('pods')": "@kopf.daemon needs a process all day: fn",
        "index('pods')": "@kopf.index needs a watch of all objects: fn",
        "on.validate('pods')": "@kopf.on.validate and @kopf.on.mutate need a server of their own: fn",
    }.items():
        file = tmp_path / "refused.py"
        file.write_text(f"import kopf\n\n@kopf.{decorator}\ndef fn(**_): pass\n")
        ended = subprocess.run([sys.executable, "-m", "reschedule_kopf", str(file)], capture_output=True, text=True)
        assert ended.returncode == 1 and said in ended.stderr, ended.stderr
