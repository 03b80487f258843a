"""kopf's timers, whose next time is in the object and in the source, not in a process."""

import asyncio
import datetime
import hashlib
import json
import logging
from collections.abc import Collection

import kopf
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, ids
from kopf._core.actions import execution, lifecycles, progression
from kopf._core.intents import causes, handlers, stoppers

from reschedule_kopf.progress import Notes

logger = logging.getLogger(__name__)


def key(handler: handlers.TimerHandler) -> ids.HandlerId:
    """The key of a timer's record. The same function can also be a handler of changes, with a record of its own."""
    return ids.HandlerId(f"timer/{handler.id}")


async def run(
    *,
    timers: Collection[handlers.TimerHandler],
    others: Collection[handlers.TimerHandler],
    cause: causes.DaemonCause,
    essence: bodies.BodyEssence,
    storage: kopf.ProgressStorage,
    settings: configuration.OperatorSettings,
    notes: Notes,
) -> tuple[list[float], bool]:
    """Runs the timers that are due, and returns the seconds to the next times, and whether one of them is a retry.

    timers match the object. The others do not match it: their records are removed.
    """
    delays: list[float] = []
    retry = False
    for handler in others:
        storage.purge(key=key(handler), body=cause.body, patch=cause.patch)
    for handler in timers:
        record = storage.fetch(key=key(handler), body=cause.body)
        planned = _plan(handler, record, cause, essence)
        if planned.get("success"):
            _store(storage, handler, record, planned, cause)
            continue  # it waits for a change
        now = _now()
        due = progression.parse_iso8601(planned.get("delayed")) or now
        if due <= now:
            planned, failed = await _execute(handler, planned, cause, settings)
            if failed is not None and failed.final:
                notes.failed[handler.id] = str(failed.exception)
            now = _now()
            due = progression.parse_iso8601(planned.get("delayed")) or now
        if planned.get("retries"):
            notes.retried[handler.id] = planned.get("message") or "failed without a message"
            retry = True
        _store(storage, handler, record, planned, cause)
        if not planned.get("success"):
            delays.append(max(0.0, (due - now).total_seconds()))
    return delays, retry


def _plan(
    handler: handlers.TimerHandler,
    record: kopf.ProgressRecord | None,
    cause: causes.DaemonCause,
    essence: bodies.BodyEssence,
) -> kopf.ProgressRecord:
    """The record of a timer before it may run: when it is due first, and what a change moves."""
    now = _now()
    planned = kopf.ProgressRecord(**record) if record is not None else kopf.ProgressRecord()
    if record is None and handler.initial_delay is not None:
        wait = handler.initial_delay
        planned["delayed"] = _at(now, wait(**cause.kwargs) if callable(wait) else wait)
    if handler.idle is not None:
        digest = hashlib.sha256(json.dumps(essence, sort_keys=True, default=str).encode()).hexdigest()[:16]
        if planned.get("purpose") != digest:
            due = progression.parse_iso8601(planned.get("delayed")) or now
            planned["delayed"] = progression.format_iso8601(max(due, now + datetime.timedelta(seconds=handler.idle)))
            planned["purpose"] = digest
            planned["success"] = None
    return planned


async def _execute(
    handler: handlers.TimerHandler,
    record: kopf.ProgressRecord,
    cause: causes.DaemonCause,
    settings: configuration.OperatorSettings,
) -> tuple[kopf.ProgressRecord, execution.Outcome | None]:
    """Runs a timer once, and returns its record, and the outcome if it failed."""
    clock = asyncio.get_running_loop().time
    began = clock()
    basetime = _now() - datetime.timedelta(seconds=began)
    state = progression.State(
        {handler.id: progression.HandlerState.from_storage(record, basetime=basetime).as_active()}, basetime=basetime
    )
    outcomes = await execution.execute_handlers_once(
        lifecycle=lifecycles.all_at_once, settings=settings, handlers=[handler], cause=cause, state=state
    )
    progression.deliver_results(outcomes=outcomes, patch=cause.patch)
    outcome = outcomes[handler.id]
    now = _now()
    planned = kopf.ProgressRecord(purpose=record.get("purpose"))
    if not outcome.final:
        planned = state.with_outcomes(outcomes)[handler.id].for_storage()
        planned["purpose"] = record.get("purpose")
        planned["delayed"] = planned["delayed"] or _at(now, 0)
    elif handler.interval is not None and handler.sharp:
        planned["delayed"] = _at(now, handler.interval - (clock() - began) % handler.interval)
    elif handler.interval is not None:
        planned["delayed"] = _at(now, handler.interval)
    else:
        planned["success"] = True  # until the next change, or for ever
    return planned, outcome if outcome.exception is not None else None


def _store(
    storage: kopf.ProgressStorage,
    handler: handlers.TimerHandler,
    before: kopf.ProgressRecord | None,
    record: kopf.ProgressRecord,
    cause: causes.DaemonCause,
) -> None:
    if {k: v for k, v in record.items() if v is not None} != (before or {}):
        storage.store(key=key(handler), record=record, body=cause.body, patch=cause.patch)


def cause_of(cause: causes.SpawningCause) -> causes.DaemonCause:
    """The cause with which kopf calls timers. Nothing stops them: they end with the delivery."""
    return causes.DaemonCause(
        resource=cause.resource,
        indices=cause.indices,
        logger=cause.logger,
        memo=cause.memo,
        body=cause.body,
        patch=cause.patch,
        stopper=stoppers.DaemonStopper(),
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _at(now: datetime.datetime, seconds: float) -> str:
    return progression.format_iso8601(now + datetime.timedelta(seconds=seconds))
