"""examples/agents: the alarm clock of agents that sleep, with a real adapter without a cluster, as in make demo."""

import http.client
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import HERE, PATIENCE, free_port, send, until

ROOT = (HERE / "../..").resolve()
EXAMPLE = ROOT / "examples/agents"
sys.path.insert(0, str(EXAMPLE))

from alarm import Alarm, Refused  # type: ignore[import-not-found] # noqa: E402


class Program:
    """A process, and the lines that it prints."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def said(self) -> str:
        """The next line."""
        return self.lines.get(timeout=PATIENCE)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)


class Agents:
    """The router and the adapter, and the agents' memory."""

    def __init__(self, work: pathlib.Path) -> None:
        self.memory = work / "agents"
        self.memory.mkdir()
        self.router = Program(
            [sys.executable, str(EXAMPLE / "router.py")], HOST="127.0.0.1", PORT="0", AGENTS=str(self.memory)
        )
        self.sink = "127.0.0.1:" + self.router.said().removeprefix("router: port ")
        sources = work / "source.yaml"
        sources.write_text((EXAMPLE / "source.yaml").read_text().replace("127.0.0.1:8081", self.sink))
        binary = os.environ.get("ADAPTER_BINARY")
        assert binary, "ADAPTER_BINARY is not set: make python builds it"
        command = [binary, "--standalone", "--sources", str(sources), "--data-dir", str(work / "data")]
        self.adapter = Program([*command, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        ready = self.adapter.said()
        address = re.search(r"schedule API on (http://[^\s,]+)", ready)
        assert address, ready
        self.alarm = Alarm(address[1] + "/default/agents")

    def write(self, name: str, **memory: Any) -> None:
        (self.memory / f"{name}.json").write_text(json.dumps(memory))

    def read(self, name: str) -> Any:
        return json.loads((self.memory / f"{name}.json").read_text())


@pytest.fixture
def agents(tmp_path: pathlib.Path) -> Iterator[Agents]:
    running = Agents(tmp_path)
    yield running
    running.adapter.end()
    running.router.end()


def test_agent_is_woken_until_it_is_done(agents: Agents) -> None:
    """Each answer sets the next time, and the last one none."""
    agents.write("ada", steps=["build", "deploy"], every="20ms")
    agents.alarm.wake("ada", delay="0s")
    assert agents.router.said() == "ada: woken, again: 20ms"
    assert agents.router.said() == "ada: woken, again: None"
    assert agents.read("ada")["done"] == ["build", "deploy"]
    until("nothing waits", lambda: agents.alarm.show("ada") is None)


def test_agent_replaces_and_cancels(agents: Agents) -> None:
    """A new time replaces the earlier one, and a cancelled agent sleeps on."""
    for name in "bob", "carl":
        agents.write(name)
        assert agents.alarm.wake(name, delay="10h")["result"] == "created"
    agents.alarm.cancel("carl")
    agents.alarm.cancel("carl")
    assert agents.alarm.show("carl") is None
    assert [item["key"] for item in agents.alarm.list()] == ["bob"]
    assert agents.alarm.wake("bob", delay="11h", policy="earliest")["result"] == "merged"
    assert agents.alarm.wake("bob", delay="0s")["result"] == "replaced"
    assert agents.router.said() == "bob: woken, again: None"
    until("nothing waits", lambda: not list(agents.alarm.list()))
    assert agents.read("bob")["done"] == ["looked around"]


def test_agent_has_a_calendar(agents: Agents) -> None:
    """It is listed with its next instant, nine o'clock in Berlin, and a bad one is refused."""
    agents.alarm.wake("dora", cron="0 9 * * MON-FRI", timeZone="Europe/Berlin")
    (item,) = agents.alarm.list()
    assert (item["cron"], item["timeZone"], item["state"]) == ("0 9 * * MON-FRI", "Europe/Berlin", "waiting")
    assert item["dueAt"].endswith(("T07:00:00Z", "T08:00:00Z"))
    with pytest.raises(Refused, match="cron") as refused:
        agents.alarm.wake("dora", cron="0 9 30 2 *")
    assert (refused.value.status, refused.value.code) == (400, "invalid_argument")


def test_failed_agent_is_a_dead_letter(agents: Agents) -> None:
    """It is kept with its error, and runs again once the fault is repaired."""
    agents.alarm.wake("eve", delay="0s")
    (letter,) = until("it is given up", lambda: list(agents.alarm.letters()))
    assert (letter["key"], letter["status"], letter["attempts"]) == ("eve", 500, 2)
    assert letter["detail"] == "eve: there is no agent eve"
    agents.alarm.wake("No Name", delay="0s")
    letters = until("both are given up", lambda: [each for each in agents.alarm.letters() if each["key"] == "No Name"])
    assert (letters[0]["status"], letters[0]["attempts"]) == (400, 1)
    agents.write("eve")
    agents.alarm.redrive("eve")
    while agents.router.said() != "eve: woken, again: None":
        pass
    assert [each["key"] for each in agents.alarm.letters()] == ["No Name"]


def test_repeat_is_one_step(agents: Agents) -> None:
    """A delivery that comes twice has one step, and the same answer."""
    agents.write("fay", steps=["one", "two", "three"], every="5m")
    for source, event, done in ("/a", "7", 1), ("/a", "7", 1), ("/b", "7", 2):
        status, headers, _ = send(f"http://{agents.sink}/", "fay", headers={"Ce-Source": source, "Ce-Id": event})
        assert (status, headers["Reschedule-After"]) == (204, "5m")
        assert len(agents.read("fay")["done"]) == done


def test_deliveries_beside_each_other(agents: Agents) -> None:
    """No step is lost, as when a retry comes while the first attempt still runs."""
    agents.write("gus")
    with ThreadPoolExecutor(4) as pool:
        for answer in [
            pool.submit(send, f"http://{agents.sink}/", "gus", headers={"Ce-Source": "/", "Ce-Id": str(event)})
            for event in range(16)
        ]:
            assert answer.result()[0] == 204
    assert len(agents.read("gus")["done"]) == 16


def test_router_refuses_bad_requests(agents: Agents) -> None:
    """A delivery without an identity, or with a body of no or too great a length, wakes no agent."""
    agents.write("hal")
    good = {"Ce-Reschedulekey": "hal", "Ce-Source": "/", "Ce-Id": "1"}
    rows: list[tuple[dict[str, str], int]] = [
        ({"Ce-Id": ""}, 400),
        ({"Ce-Source": ""}, 400),
        ({"Content-Length": "-1"}, 400),
        ({"Content-Length": "x"}, 400),
        ({"Content-Length": "1000000"}, 413),
        ({}, 204),
    ]
    for bad, status in rows:
        connection = http.client.HTTPConnection(agents.sink, timeout=PATIENCE)
        connection.request("POST", "/", headers=good | bad)
        assert connection.getresponse().status == status, bad
        connection.close()
    assert len(agents.read("hal")["done"]) == 1


@pytest.mark.parametrize("said", ["", "wake", "wake ada delay", "show", "list ada", "snooze ada"])
def test_alarm_shows_its_usage(said: str) -> None:
    """A command that it does not understand ends with 2."""
    command = [sys.executable, str(EXAMPLE / "alarm.py"), *said.split()]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "RESCHEDULE_URL": "http://x"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("The alarm clock")


def test_page_runs_as_pasted(tmp_path: pathlib.Path) -> None:
    """The commands of docs/agents.md, in its two terminals."""
    first, *second = re.findall(r"(?ms)^```sh\n(.*?)^```$", (ROOT / "docs/agents.md").read_text())
    assert len(second) == 3
    router, api = str(free_port()), str(free_port())
    for name in "examples", "bin":
        (tmp_path / name).mkdir()
    (tmp_path / "bin/adapter").symlink_to(pathlib.Path(os.environ["ADAPTER_BINARY"]).resolve())
    (tmp_path / "examples/agents").mkdir()
    for file in EXAMPLE.glob("*.*"):
        text = file.read_text().replace("8081", router)
        (tmp_path / "examples/agents" / file.name).write_text(text)
    begin = "set -euo pipefail\ngo() { :; }\n"
    script = first.replace("127.0.0.1:8080", f"127.0.0.1:{api} --admin-listen 127.0.0.1:0")
    terminal = subprocess.Popen(["bash", "-c", begin + script], cwd=tmp_path, start_new_session=True)
    try:
        alarm = Alarm(f"http://127.0.0.1:{api}/default/agents")

        def serves() -> bool:
            try:
                return alarm.show("ada") is None
            except OSError:
                return False

        until("the adapter serves", serves)
        pasted = begin + "".join(second).replace("8080", api).replace("sleep 1;", "sleep 0.1;")
        done = subprocess.run(
            ["bash", "-c", pasted], cwd=tmp_path, capture_output=True, text=True, timeout=2 * PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert '"cron": "0 9 * * MON-FRI"' in done.stdout
        assert "there is no agent eve" in done.stdout
        assert [item["key"] for item in alarm.list()] == ["ada"]
        memory = json.loads((tmp_path / "agents/ada.json").read_text())
        assert (memory["done"], memory["steps"]) == (["build", "deploy"], [])
    finally:
        os.killpg(terminal.pid, signal.SIGTERM)
        terminal.wait(PATIENCE)
