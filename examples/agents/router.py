"""The sink of one RescheduleSource for all agents: it resumes the agent whose name is the key of the delivery.

An agent here is a file of its own in AGENTS, such as agents/ada.json: {"steps": ["build", "deploy"], "every": "2s"}.
It does one step each time it is woken. With real agents resume calls your platform. The standard library only.
"""

import json
import os
import pathlib
import re
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

AGENTS = pathlib.Path(os.environ.get("AGENTS", "agents"))
NAME = re.compile(r"[a-z0-9-]{1,63}")
LOCKS = {}


def resume(name, event):
    """Lets the agent do its next step. Returns after how long it wants to be woken again, None for not."""
    file = AGENTS / f"{name}.json"
    if not file.exists():
        raise LookupError(f"there is no agent {name}")
    with LOCKS.setdefault(name, threading.Lock()):  # after delivery.timeout a retry comes while the first still runs
        memory = json.loads(file.read_text())
        if memory.get("event") != event:  # else it is a repeat: the answer to the first delivery was lost
            step = memory["steps"].pop(0) if memory.get("steps") else "looked around"
            again = memory.get("every") if memory.get("steps") else None
            memory |= {"event": event, "again": again, "done": [*memory.get("done", []), step]}
            write(file, json.dumps(memory))
        return memory["again"]


def write(file, text):
    """Whole, or not at all; once it returns, the text is on the disk."""
    suspended = file.with_suffix(".new")
    with suspended.open("w") as new:
        new.write(text)
        new.flush()
        os.fsync(new.fileno())
    suspended.replace(file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Router(BaseHTTPRequestHandler):
    timeout = 30

    def do_GET(self):  # probes
        self.answer(200)

    def do_POST(self):
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal():
            return self.answer(400, said="Content-Length is no number")
        if len(length) > 6:  # a source sends at most 256 KiB of data
            return self.answer(413, said="the body is too large")
        self.rfile.read(int(length))
        name = unquote(self.headers.get("Ce-Reschedulekey", ""))
        if not NAME.fullmatch(name):
            return self.answer(400, said=f"{name!r} is no name of an agent")  # not retried: a dead letter at once
        event = [self.headers.get("Ce-Source"), self.headers.get("Ce-Id")]  # an id is unique for its source only
        if not all(event):
            return self.answer(400, said="Ce-Source or Ce-Id is missing")
        try:
            again = resume(name, event)
        except Exception as failure:  # retried, then a dead letter
            return self.answer(500, said=f"{name}: {failure}")
        print(f"{name}: woken, again: {again}", flush=True)
        self.answer(204, again)

    def answer(self, status, again=None, said=""):
        if said:
            print(said, flush=True)
        self.send_response_only(status)
        if again is not None:
            self.send_header("Reschedule-After", again)
        if status != 204:
            self.send_header("Content-Length", str(len(said.encode())))
        self.end_headers()
        if status != 204:
            self.wfile.write(said.encode())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the first process of a container has no default handler
    ThreadingHTTPServer.request_queue_size = 128  # a calendar may wake many agents at once
    server = ThreadingHTTPServer((os.environ.get("HOST", ""), int(os.environ.get("PORT", "8081"))), Router)
    print(f"router: port {server.server_port}", flush=True)
    server.serve_forever()
