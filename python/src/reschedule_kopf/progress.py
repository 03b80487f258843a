"""What handlers left in kopf's progress storage during one delivery."""

import contextvars
import dataclasses

import kopf
from kopf._cogs.structs import bodies, ids, patches


@dataclasses.dataclass
class Notes:
    """The messages of handlers that failed for good, and of handlers that are retried."""

    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    retried: dict[str, str] = dataclasses.field(default_factory=dict)

    def take(self, key: str, record: kopf.ProgressRecord) -> None:
        message = record.get("message") or "failed without a message"
        self.retried.pop(key, None)
        if record.get("failure"):
            self.failed[key] = message
        elif not record.get("success") and record.get("retries"):
            self.retried[key] = message

    def text(self) -> str:
        said = [f"{k} failed permanently: {v}" for k, v in self.failed.items()]
        said += [f"{k} failed: {v}" for k, v in self.retried.items()]
        return "\n".join(said)[:4096]


notes: contextvars.ContextVar[Notes] = contextvars.ContextVar("notes")


class NotingStorage(kopf.ProgressStorage):
    """The operator's own progress storage, with a note of each failure that passes through."""

    def __init__(self, storage: kopf.ProgressStorage) -> None:
        self.storage = storage

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> kopf.ProgressRecord | None:
        record = self.storage.fetch(key=key, body=body)
        if record is not None:
            notes.get().take(key, record)
        return record

    def store(
        self, *, key: ids.HandlerId, record: kopf.ProgressRecord, body: bodies.Body, patch: patches.Patch
    ) -> None:
        notes.get().take(key, record)
        self.storage.store(key=key, record=record, body=body, patch=patch)

    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        self.storage.purge(key=key, body=body, patch=patch)

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        self.storage.touch(body=body, patch=patch, value=value)

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        return self.storage.clear(essence=essence)

    def flush(self) -> None:
        self.storage.flush()
