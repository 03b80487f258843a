# mypy: disable-error-code="arg-type"
"""An operator that does what each object says, and writes a journal. It knows nothing of RescheduleSource."""

import os
import time
from typing import Any

import kopf

CASES = ("test.reschedule.dev", "v1", "cases")


def note(name: str | None, handler: str, retry: int) -> None:
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"{name} {handler} {retry} {time.time()}\n")


def act(steps: list[str] | None, retry: int) -> None:
    step = (steps or [])[retry] if retry < len(steps or []) else "ok"
    kind, _, value = step.partition(":")
    if kind == "temporary":
        raise kopf.TemporaryError("not yet", delay=float(value))
    if kind == "permanent":
        raise kopf.PermanentError("never")
    if kind == "error":
        raise RuntimeError("it broke")
    if kind == "hang":
        time.sleep(float(value))


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = True


@kopf.on.create(*CASES, backoff=0.5, retries=4)
def create(name: str, spec: kopf.Spec, retry: int, meta: kopf.Meta, **_: Any) -> dict[str, Any]:
    note(name, "create", retry)
    act(spec.get("create"), retry)
    return {"generation": meta["generation"]}


@kopf.on.update(*CASES, backoff=0.5)
def update(name: str, spec: kopf.Spec, retry: int, **_: Any) -> None:
    note(name, "update", retry)
    act(spec.get("update"), retry)


@kopf.on.field(*CASES, field="spec.color")
def color(name: str, old: Any, new: Any, retry: int, **_: Any) -> None:
    note(name, f"color:{old}->{new}", retry)


@kopf.on.delete(*CASES, backoff=0.5)
def delete(name: str, spec: kopf.Spec, retry: int, **_: Any) -> None:
    note(name, "delete", retry)
    act(spec.get("delete"), retry)


@kopf.on.create(*CASES, when=lambda spec, **_: spec.get("parts"))
async def parts(name: str, spec: kopf.Spec, **_: Any) -> None:
    async def part(retry: int, **_: Any) -> None:
        note(name, "part", retry)
        act(spec["parts"], retry)

    await kopf.execute(fns={"part": part})  # type: ignore[dict-item]


@kopf.timer(*CASES, interval=4, backoff=0.5, retries=3, when=lambda spec, **_: "timer" in spec)
def timer(name: str, spec: kopf.Spec, retry: int, **_: Any) -> dict[str, float]:
    note(name, "timer", retry)
    act(spec["timer"], retry)
    return {"at": time.time()}


@kopf.timer(*CASES, interval=20, initial_delay=50, when=lambda spec, **_: "later" in spec)
def later(name: str, retry: int, **_: Any) -> None:
    note(name, "later", retry)


@kopf.timer(*CASES, interval=20, idle=30, when=lambda spec, **_: "idle" in spec)
def idle(name: str, retry: int, **_: Any) -> None:
    note(name, "idle", retry)


@kopf.timer(*CASES, interval=30, sharp=True, when=lambda spec, **_: "sharp" in spec)
def sharp(name: str, retry: int, **_: Any) -> None:
    note(name, "sharp", retry)
    time.sleep(1)
