"""Deliveries in the place of watches: each reads its object, and gives it to kopf."""

import asyncio
import contextvars
import dataclasses
import logging
import os
import time
from collections.abc import Collection
from typing import Any, cast

from kopf._cogs.clients import api, errors, scanning
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, ephemera, patches, references
from kopf._core.actions import application, lifecycles, loggers
from kopf._core.engines import indexing, posting
from kopf._core.intents import causes, handlers, registries
from kopf._core.reactor import inventory, observation, processing, running

from reschedule_kopf import progress, server, timers, tokens
from reschedule_kopf.answers import NEVER, Answer, again

logger = logging.getLogger(__name__)

# A wait as short as this is no reason for another delivery: clocks differ by as much.
_SHORT = 0.1
# The least time between two looks at the kinds that the API server has.
_SCAN_EVERY = 5.0
# How many objects are remembered, for memos and for handlers of resuming.
_MEMORIES = 10_000


@dataclasses.dataclass(frozen=True)
class Delivery:
    """What a delivery is about."""

    key: str
    api_version: str | None = None  # of the object, if the event names it


def run(
    *,
    audience: str | None = None,
    subjects: Collection[str] = (),
    port: int | None = None,
    timeout: float = 60,
    grace: float = 8,
    namespaces: Collection[str] = (),
    registry: registries.OperatorRegistry | None = None,
    settings: configuration.OperatorSettings | None = None,
    memo: object | None = None,
) -> None:
    """Serves deliveries until SIGTERM, in the place of kopf.run.

    audience is the sink.audience of the source; without it every sender is taken. subjects are the accounts that may
    send; the default is every RescheduleSource of the own namespace. timeout is the time in seconds after which a
    delivery is answered with 503, and grace the time that runs have after SIGTERM.
    """
    registry = registry if registry is not None else registries.get_default_registry()
    settings = settings if settings is not None else configuration.OperatorSettings()
    memo = memo if memo is not None else ephemera.Memo()
    refuse(registry)
    settings.scanning.disabled = True  # nothing is watched, not even definitions and namespaces
    settings.peering.standalone = True
    insights, indexers = references.Insights(), indexing.OperatorIndexers()
    operator = Operator(
        registry=registry,
        settings=settings,
        insights=insights,
        indexers=indexers,
        memo=memo,
        namespaces=namespaces,
        timeout=timeout,
    )
    verifier = tokens.Verifier(audience, tokens.admitted(subjects), operator.keys) if audience else None
    port = port if port is not None else int(os.environ.get("PORT", "8080"))

    async def serve() -> None:
        await operator.start()
        await server.serve(port=port, verifier=verifier, deliver=operator.deliver, stop=operator.stop, grace=grace)

    running.run(
        registry=registry,
        settings=settings,
        insights=insights,
        indexers=indexers,
        memo=memo,
        clusterwide=True,
        standalone=True,
        _command=serve(),
    )


def refuse(registry: registries.OperatorRegistry) -> None:
    """Raises an error that names what needs a process all day."""
    daemons = [h.id for h in registry._spawning.get_all_handlers() if not isinstance(h, handlers.TimerHandler)]
    if daemons:
        raise ValueError(
            f"@kopf.daemon needs a process all day: {', '.join(daemons)}. "
            "Use @kopf.timer, or keep the operator resident (kopf run)"
        )
    indices = [h.id for h in registry._indexing.get_all_handlers()]
    if indices:
        raise ValueError(
            f"@kopf.index needs a watch of all objects: {', '.join(indices)}. "
            "List them in the handler, or keep the operator resident (kopf run)"
        )
    webhooks = [h.id for h in registry._webhooks.get_all_handlers()]
    if webhooks:
        raise ValueError(
            f"@kopf.on.validate and @kopf.on.mutate need a server of their own: {', '.join(webhooks)}. "
            "Run them in another process (kopf run)"
        )


class Operator:
    """The handlers of a registry, called for one object at a time by deliveries."""

    def __init__(
        self,
        *,
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings,
        insights: references.Insights,
        indexers: indexing.OperatorIndexers,
        memo: object,
        namespaces: Collection[str] = (),
        timeout: float = 60,
    ) -> None:
        self._timers = registry._spawning
        # What kopf's own processing sees: handlers of changes and events. It would start tasks for timers.
        self._registry = registries.OperatorRegistry()
        self._registry._watching = registry._watching
        self._registry._changing = registry._changing
        self._settings = settings
        self._insights = insights
        self._indexers = indexers
        self._memo = ephemera.AnyMemo(memo)
        self._namespaces = namespaces
        self._timeout = timeout
        self._memories = inventory.ResourceMemories()
        self._lifecycle = lifecycles.get_default_lifecycle()
        self._runs: dict[str, asyncio.Task[Answer]] = {}
        self._scanned = 0.0

    async def start(self) -> None:
        """Begins when the handlers of startup have ended; returns when deliveries can be processed."""
        self._settings.persistence.progress_storage = progress.NotingStorage(
            self._settings.persistence.progress_storage
        )
        self._events: posting.K8sEventQueue = asyncio.Queue()
        self._poster = asyncio.create_task(
            posting.poster(settings=self._settings, backbone=self._insights.backbone, event_queue=self._events)
        )
        posting.event_queue_loop_var.set(asyncio.get_running_loop())
        posting.event_queue_var.set(self._events)
        self._context = contextvars.copy_context()  # kopf keeps its credentials and settings there
        self._cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping = False
        await self._insights.ready_resources.wait()

    async def stop(self, grace: float) -> None:
        """Lets runs end within a time; deliveries that are left are answered with 503."""
        self._stopping = True
        if self._runs:
            await asyncio.wait(list(self._runs.values()), timeout=grace)
        if not self._cut.done():
            self._cut.set_result(None)
        if self._runs:
            logger.warning("Handlers still run, and the process ends without them: %s", ", ".join(sorted(self._runs)))
            asyncio.get_running_loop().call_later(2, os._exit, 1)  # kopf would wait for them
        self._poster.cancel()

    async def keys(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The description of the API server's tokens, and the keys that sign them."""
        about = self._context.copy().run(asyncio.ensure_future, self._get("/.well-known/openid-configuration"))
        keys = self._context.copy().run(asyncio.ensure_future, self._get("/openid/v1/jwks"))
        return await about, await keys

    async def _get(self, path: str) -> dict[str, Any]:
        return cast(dict[str, Any], await api.get(path, settings=self._settings, logger=logger))

    async def deliver(self, delivery: Delivery) -> Answer:
        """Processes a delivery, and never fails. A run that takes too long goes on, and holds its key."""
        if self._stopping:
            return Answer(503, "the operator stops", {"Retry-After": "1"})
        end = asyncio.get_running_loop().time() + self._timeout
        before = self._runs.get(delivery.key)
        if before is not None:
            await asyncio.wait(
                cast(set[asyncio.Future[Any]], {before, self._cut}),
                timeout=self._timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if delivery.key in self._runs or self._stopping:
                return Answer(503, "an earlier run of this key has not ended")
        run = asyncio.create_task(self._process(delivery, end), context=self._context.copy())
        self._runs[delivery.key] = run
        run.add_done_callback(lambda _: self._runs.pop(delivery.key, None))
        await asyncio.wait(
            cast(set[asyncio.Future[Any]], {run, self._cut}),
            timeout=end - asyncio.get_running_loop().time(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not run.done():
            return Answer(
                503, "the operator stops" if self._stopping else f"the handlers took longer than {self._timeout:g} s"
            )
        try:
            return run.result()
        except (Exception, asyncio.CancelledError) as e:
            logger.error("The delivery of %s cannot be processed now, and comes again", delivery.key, exc_info=e)
            return Answer(503, f"{type(e).__name__}: {e}"[:4096])

    async def _process(self, delivery: Delivery, end: float) -> Answer:
        parts = delivery.key.split("/")
        if len(parts) != 3 or not parts[0] or not parts[2]:
            return Answer(400, "the key must be Kind/namespace/name, as spec.watch makes it")
        kind, namespace, name = parts
        if (
            namespace
            and self._namespaces
            and not any(references.match_namespace(references.NamespaceName(namespace), p) for p in self._namespaces)
        ):
            return Answer(400, f"this operator is only for objects of the namespaces {', '.join(self._namespaces)}")
        found = await self._resource(kind, bool(namespace), delivery.api_version)
        if isinstance(found, str):
            return Answer(400, found)
        notes = progress.Notes()
        progress.notes.set(notes)
        while True:
            body = await self._read(found, namespace, name)
            if body is None:
                return Answer(204, "", {"Reschedule-After": NEVER})
            turn = await self._turn(found, body)
            if turn.changed or (turn.delays and min(turn.delays) <= _SHORT):
                if asyncio.get_running_loop().time() >= end:
                    return Answer(503, "the handlers did not come to an end in time")
                if not turn.changed:
                    await asyncio.sleep(min(turn.delays))
                continue
            wait = min(turn.delays) if turn.delays else None
            if turn.retry:
                return again(503, wait, notes.text())
            if notes.failed:
                return again(422, wait, notes.text())
            return again(204, wait)

    async def _turn(self, resource: references.Resource, raw_body: bodies.RawBody) -> "_Turn":
        """One handling cycle of kopf: causes, handlers, patch. It is what kopf does for an event of a watch."""
        settings = self._settings
        body = bodies.Body(raw_body)
        # To kopf, an object that it knows from before is resumed by a new process, and a new object is created.
        known = settings.persistence.diffbase_storage.fetch(body=body) is not None
        memory = await self._memory(raw_body, known)
        patch = patches.Patch(memory.remaining_patch, body=body)
        local_logger = loggers.LocalObjectLogger(body=body, settings=settings)
        raw_event = bodies.RawEvent(type="MODIFIED", object=raw_body)
        changing, _ = await processing.process_resource_causes(
            lifecycle=self._lifecycle,
            indexers=self._indexers,
            registry=self._registry,
            settings=settings,
            resource=resource,
            raw_event=raw_event,
            body=body,
            patch=patch,
            memory=memory,
            local_logger=local_logger,
            event_logger=loggers.ObjectLogger(body=body, settings=settings),
            stream_pressure=None,
            operator_paused=None,
            consistency_time=None,
        )
        delays, retry = list(changing), bool(changing)
        if (
            not patch
            and not raw_body["metadata"].get("deletionTimestamp")
            and self._timers.has_handlers(resource=resource)
        ):
            more, again_ = await self._run_timers(resource, body, patch, memory)
            delays += more
            retry = retry or again_
        if not patch:
            return _Turn(False, delays, retry)
        settings.persistence.progress_storage.touch(body=body, patch=patch, value=None)
        version, memory.remaining_patch = await application.patch_and_check(
            settings=settings, resource=resource, body=body, patch=patch, logger=local_logger
        )
        changed = memory.remaining_patch is not None or version != raw_body["metadata"].get("resourceVersion")
        return _Turn(changed, delays, retry)

    async def _run_timers(
        self, resource: references.Resource, body: bodies.Body, patch: patches.Patch, memory: inventory.ResourceMemory
    ) -> tuple[list[float], bool]:
        settings = self._settings
        noting = cast(progress.NotingStorage, settings.persistence.progress_storage)
        cause = causes.detect_spawning_cause(
            resource=resource,
            indices=self._indexers.indices,
            logger=loggers.LocalObjectLogger(body=body, settings=settings),
            patch=patch,
            body=body,
            memo=memory.memo,
            reset=False,
        )
        matching = [h for h in self._timers.get_handlers(cause=cause) if isinstance(h, handlers.TimerHandler)]
        every = [h for h in self._timers.get_all_handlers() if isinstance(h, handlers.TimerHandler)]
        ids = {h.id for h in matching}
        essence = settings.persistence.diffbase_storage.build(
            body=body, extra_fields=self._timers.get_extra_fields(resource=resource)
        )
        return await timers.run(
            timers=matching,
            others=[h for h in every if h.id not in ids],
            cause=timers.cause_of(cause),
            essence=noting.storage.clear(essence=essence),
            storage=noting.storage,
            settings=settings,
            notes=progress.notes.get(),
        )

    async def _memory(self, raw_body: bodies.RawBody, known: bool) -> inventory.ResourceMemory:
        items = self._memories._items
        while len(items) > _MEMORIES:
            del items[next(iter(items))]
        return await self._memories.recall(raw_body, memobase=self._memo, noticed_by_listing=known)

    async def _read(self, resource: references.Resource, namespace: str, name: str) -> bodies.RawBody | None:
        url = resource.get_url(namespace=references.NamespaceName(namespace) if namespace else None, name=name)
        try:
            body = await self._get(url)
        except errors.APINotFoundError:
            return None
        return cast(bodies.RawBody, body)

    async def _resource(self, kind: str, namespaced: bool, api_version: str | None) -> references.Resource | str:
        """The resource of a kind for which there are handlers, else what is wrong."""
        found = self._select(kind, namespaced, api_version)
        now = time.monotonic()
        if not found and now - self._scanned > _SCAN_EVERY:  # its definition may be new
            self._scanned = now
            resources = await scanning.scan_resources(groups=None, settings=self._settings, logger=logger)
            registry = registries.OperatorRegistry()
            registry._watching, registry._changing, registry._spawning = (
                self._registry._watching,
                self._registry._changing,
                self._timers,
            )
            async with self._insights.revised:
                observation.revise_resources(
                    resources=resources, insights=self._insights, registry=registry, group=None
                )
            found = self._select(kind, namespaced, api_version)
        if not found:
            return f"no handler of this operator is for the kind {kind}"
        if len({r.group for r in found}) > 1:
            return f"the kind {kind} is in several groups: name the group in the decorators of the handlers"
        return next((r for r in found if r.preferred), found[0])

    def _select(self, kind: str, namespaced: bool, api_version: str | None) -> list[references.Resource]:
        group = api_version.rpartition("/")[0] if api_version is not None else None
        return [
            r
            for r in self._insights.watched_resources
            if r.kind == kind and r.namespaced == namespaced and (group is None or r.group == group)
        ]


@dataclasses.dataclass(frozen=True)
class _Turn:
    changed: bool  # the object is another one now
    delays: Collection[float]  # seconds to what is left to do
    retry: bool  # a handler is retried
