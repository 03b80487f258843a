# An operator in plain Python: a namespace with the label preview-ttl (90s, 30m, 12h, 7d) is deleted when it is that old.
import calendar, json, math, os, re, signal, ssl, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib import parse, request

API = os.environ.get("API", "https://kubernetes.default.svc")
ACCOUNT = os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the default one refuses the certificates of some clusters
TLS.load_verify_locations(ACCOUNT + "/ca.crt")

def call(method, path, body=None):
    headers = {"Authorization": "Bearer " + open(ACCOUNT + "/token").read(), "Content-Type": "application/json"}
    asked = request.Request(API + path, body and json.dumps(body).encode(), headers, method=method)
    with request.urlopen(asked, timeout=10, context=TLS) as answer:
        return json.load(answer)

def reconcile(name):  # returns after how many seconds to look again
    path = "/api/v1/namespaces/" + parse.quote(name, safe="")
    found = call("GET", path)["metadata"]
    ttl = re.fullmatch(r"(\d{1,4})([smhd])", found.get("labels", {}).get("preview-ttl", ""))
    if not ttl or "deletionTimestamp" in found:
        return "never"  # a change of the label wakes us
    created = calendar.timegm(time.strptime(found["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))
    left = math.ceil(created + int(ttl[1]) * SECONDS[ttl[2]] - time.time())
    if left > 0:
        return left
    call("DELETE", path, {"preconditions": {key: found[key] for key in ("uid", "resourceVersion")}})  # only what was looked at
    return "never"

class Function(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        name = self.headers["Ce-Reschedulekey"]
        try:
            status, again = 204, reconcile(name)
        except Exception as failure:
            gone = getattr(failure, "code", None) == 404
            status, again = (204, "never") if gone else (503, failure)  # 503: once more, after a back-off
        print(f"{name}: {status}, again: {again}", flush=True)
        self.send_response_only(status)
        if status == 204:
            self.send_header("Reschedule-After", again)
        self.end_headers()

signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the first process of a container has no default handler
ThreadingHTTPServer(("", int(os.environ.get("PORT", 8080))), Function).serve_forever()
