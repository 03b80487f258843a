"""The door of the operator. Bodies, their number and their time are bounded."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiohttp import web

from reschedule_kopf import tokens
from reschedule_kopf.answers import Answer

if TYPE_CHECKING:
    from reschedule_kopf.operator import Delivery

logger = logging.getLogger(__name__)

# An event has at most 256 KiB of data, as base64 at most, and its attributes.
MAX_BODY = 8 << 20
# Deliveries at a time, and their bytes. The answer to more is 503.
MAX_DELIVERIES = 1000
MAX_BYTES = 32 << 20
# The time in seconds in which a body must come in.
READ_TIMEOUT = 30


class Door:
    """Reads requests, and passes deliveries on."""

    def __init__(self, verifier: tokens.Verifier | None, deliver: "Callable[[Delivery], Awaitable[Answer]]") -> None:
        self._verifier = verifier
        self._deliver = deliver
        self._deliveries = 0
        self._bytes = 0

    async def handle(self, request: web.BaseRequest) -> web.Response:
        answer = await self._answer(request)
        return web.Response(status=answer.status, text=answer.text or None, headers=answer.headers)

    async def _answer(self, request: web.BaseRequest) -> Answer:
        if request.method in ("GET", "HEAD"):
            return Answer(200)  # for probes: an operator that answers is ready
        if request.method != "POST":
            return Answer(405, "events are sent with POST", {"Allow": "GET, HEAD, POST"})
        if self._verifier is not None:
            refusal = await self._verifier.refusal(request.headers.getall("Authorization", []))
            if refusal is not None:
                return refusal  # its body is not read
        size = request.content_length if request.content_length is not None else MAX_BODY
        if size > MAX_BODY:
            return Answer(413, f"an event has at most {MAX_BODY} bytes")
        if self._deliveries >= MAX_DELIVERIES or self._bytes + size > MAX_BYTES:
            return Answer(503, "too many deliveries at a time", {"Retry-After": "1"})
        self._deliveries += 1
        self._bytes += size
        try:
            try:
                async with asyncio.timeout(READ_TIMEOUT):
                    body = await _read(request)
            except (TimeoutError, ConnectionError):
                return Answer(503, "the event did not come in whole")
            if body is None:
                return Answer(413, f"an event has at most {MAX_BODY} bytes")
            delivery = parse(request, body)
            return Answer(400, delivery) if isinstance(delivery, str) else await self._deliver(delivery)
        finally:
            self._deliveries -= 1
            self._bytes -= size


async def _read(request: web.BaseRequest) -> bytes | None:
    """The body of a request, None if it is too large."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    return bytes(body)


def parse(request: web.BaseRequest, body: bytes) -> "Delivery | str":
    """The delivery of a request, else what is wrong."""
    from reschedule_kopf.operator import Delivery

    about: Any = None
    if request.content_type == "application/cloudevents+json":
        event = _json(body)
        if not isinstance(event, dict):
            return "the event is not JSON"
        key, about = event.get("reschedulekey"), event.get("data")
    else:
        key = unquote(request.headers.get("Ce-Reschedulekey", ""))
        if request.content_type == "application/json":
            about = _json(body)
    if not isinstance(key, str) or not key:
        return "the request is no delivery of a RescheduleSource: the attribute reschedulekey is missing"
    kind, _, rest = key.partition("/")
    version = None
    # The event names the object itself, unless it was found through an owner or a key.
    if (
        isinstance(about, dict)
        and about.get("kind") == kind
        and rest == f"{about.get('namespace', '')}/{about.get('name')}"
    ):
        version = about.get("apiVersion")
    return Delivery(key, version if isinstance(version, str) else None)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


async def serve(
    *,
    port: int,
    verifier: tokens.Verifier | None,
    deliver: "Callable[[Delivery], Awaitable[Answer]]",
    stop: Callable[[float], Awaitable[None]],
    grace: float,
) -> None:
    """Serves until it is cancelled."""
    door = Door(verifier, deliver)
    app_server = web.Server(door.handle, access_log=None)
    runner = web.ServerRunner(app_server, shutdown_timeout=2)
    await runner.setup()
    await web.TCPSite(runner, port=port, backlog=1024).start()
    logger.info("Deliveries are served on port %d.", port)
    try:
        await asyncio.Event().wait()
    finally:
        await stop(grace)
        await runner.cleanup()
