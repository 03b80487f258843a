"""The alarm clock of suspended agents: a client of the schedule API, with the standard library only.

    alarm.py wake ada delay=2h
    alarm.py wake ada cron="0 9 * * MON-FRI" timeZone=Europe/Berlin
    alarm.py show ada | list | cancel ada
    alarm.py letters | redrive ada               # agents that failed

RESCHEDULE_URL is the address of the source, RESCHEDULE_TOKEN_FILE the file of a token, if the source asks for one.
"""

import json
import os
import sys
from urllib import error, parse, request


class Refused(Exception):
    """The API refused a call. status and code are for programs, the text is for people."""

    def __init__(self, status, problem):
        super().__init__(problem.get("detail", f"status {status}"))
        self.status, self.code = status, problem.get("code", "")


class Alarm:
    def __init__(self, address, token_file=""):
        self.address, self.token_file = address.rstrip("/"), token_file

    def wake(self, agent, /, **when):
        """Sets the time of an agent, in place of an earlier one. Once it returns, the time is on the disk."""
        return self.call("PUT", "/schedules/" + quoted(agent), when)

    def cancel(self, agent):
        """Also ends a calendar. No error if there is nothing to cancel."""
        self.call("DELETE", "/schedules/" + quoted(agent))

    def show(self, agent):
        """What waits for an agent, None if nothing does."""
        try:
            return self.call("GET", "/schedules/" + quoted(agent))
        except Refused as e:
            if e.status == 404:
                return None
            raise

    def list(self):
        return self.all("/schedules")

    def letters(self):
        """The dead letters: agents that failed until their retries were used up, with the last error."""
        return self.all("/deadletters")

    def redrive(self, agent):
        """Wakes a failed agent again, once its fault is repaired."""
        return self.call("POST", f"/deadletters/{quoted(agent)}/redrive")

    def all(self, path):
        after = ""
        while True:
            page = self.call("GET", f"{path}?continue={quoted(after)}" if after else path)
            yield from page["items"]
            after = page.get("continue")
            if not after:
                return

    def call(self, method, path, body=None):
        headers = {"Content-Type": "application/json"}
        if self.token_file:  # read for each call: a token of a pod is replaced within the hour
            with open(self.token_file) as token:
                headers["Authorization"] = "Bearer " + token.read().strip()
        data = None if body is None else json.dumps(body).encode()
        asked = request.Request(self.address + path, data, headers, method=method)
        try:
            with request.urlopen(asked, timeout=30) as answer:
                return json.loads(answer.read() or "null")
        except error.HTTPError as e:
            try:
                problem = json.loads(e.read())
            except ValueError:
                problem = {}
            raise Refused(e.code, problem) from None


def quoted(text):
    return parse.quote(text, safe="")


def main(*args):
    address = os.environ.get("RESCHEDULE_URL", "")
    alarm = Alarm(address, os.environ.get("RESCHEDULE_TOKEN_FILE", ""))
    match args if address else ():
        case "wake", agent, *when if all("=" in arg for arg in when):
            said = [alarm.wake(agent, **dict(arg.split("=", 1) for arg in when))]
        case ["list" | "letters" as command]:
            said = getattr(alarm, command)()
        case "show" | "cancel" | "redrive" as command, agent:
            said = [getattr(alarm, command)(agent)]
        case _:
            print(__doc__, file=sys.stderr)
            sys.exit(2)
    for item in said:
        if item is not None:
            print(json.dumps(item))


if __name__ == "__main__":
    main(*sys.argv[1:])
