"""Serves deliveries with a hook of shell-operator or a playbook of Ansible: function.py hook FILE | playbook FILE.

Read what a delivery names, run the user's own program with it, and answer with its outcome. The standard library only.
"""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib import error, parse, request

API = os.environ.get("API", "https://kubernetes.default.svc")
ACCOUNT = os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount")
# The path of the kind, such as /apis/example.com/v1 and websites.
PREFIX, PLURAL = os.environ["PREFIX"], os.environ["PLURAL"]
TIMEOUT = float(os.environ.get("TIMEOUT", "60"))
KEY = re.compile(r"([A-Za-z0-9]+)/([a-z0-9.-]*)/([a-z0-9.:-]+)")
# As shell-operator's queue, and because hooks seldom expect another one: the source has limits.maxInFlight: 1.
ONE_AT_A_TIME = threading.Lock()


def read(namespace, name):
    """The object, None if it is gone."""
    path = PREFIX + (f"/namespaces/{namespace}" if namespace else "") + f"/{PLURAL}/{parse.quote(name, safe='')}"
    with open(ACCOUNT + "/token") as token:
        asked = request.Request(API + path, headers={"Authorization": "Bearer " + token.read().strip()})
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_verify_locations(ACCOUNT + "/ca.crt")
    try:
        with request.urlopen(asked, timeout=10, context=tls) as answer:
            return json.load(answer)
    except error.HTTPError as e:
        if e.code == 404:
            return None
        raise


def call(command, **environment):
    """Runs a program, with all that it starts, for at most TIMEOUT. Raises an error when it fails."""
    with subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True) as process:
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise RuntimeError(f"{command[0]} took longer than {TIMEOUT:g} s") from None
    if code != 0:
        raise RuntimeError(f"{command[0]} ended with {code}")


def hook(file, kind, namespace, name, found):
    """A hook of shell-operator gets the object as an event of its binding."""
    event = {"binding": os.environ.get("BINDING", "kubernetes"), "type": "Event"}
    stub = {"kind": kind, "metadata": {"namespace": namespace, "name": name}}
    event |= {"watchEvent": "Modified" if found else "Deleted", "object": found or stub}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as context:
        json.dump([event], context)
        context.flush()
        call([file], BINDING_CONTEXT_PATH=context.name)


def playbook(file, kind, namespace, name, found):
    """A playbook gets the object as the variable resource. What it writes to requeue_after_file is the answer."""
    with tempfile.TemporaryDirectory() as work:
        after = os.path.join(work, "after")
        variables = {"resource": found, "kind": kind, "resource_namespace": namespace, "resource_name": name}
        with open(os.path.join(work, "vars.json"), "w") as f:
            json.dump(variables | {"requeue_after_file": after}, f)
        local = [
            "--inventory",
            "localhost,",
            "--connection",
            "local",
            "-e",
            f"ansible_python_interpreter={sys.executable}",
        ]
        call(["ansible-playbook", *local, "-e", f"@{f.name}", file])
        if os.path.exists(after):
            with open(after) as f:
                return f.read().strip()
    return None


class Function(BaseHTTPRequestHandler):
    timeout = 30

    def do_GET(self):  # probes
        self.answer(200)

    def do_POST(self):
        matched = KEY.fullmatch(parse.unquote(self.headers.get("Ce-Reschedulekey", "")))
        if not matched:
            return self.answer(400, said="the attribute reschedulekey must be Kind/namespace/name")
        try:
            with ONE_AT_A_TIME:
                found = read(matched[2], matched[3])
                again = RUN(sys.argv[2], *matched.groups(), found)
        except Exception as failure:
            return self.answer(503, said=str(failure))
        self.answer(204, "never" if found is None else again)

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
    RUN = {"hook": hook, "playbook": playbook}[sys.argv[1]]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the first process of a container has no default handler
    ThreadingHTTPServer(("", int(os.environ.get("PORT", "8080"))), Function).serve_forever()
