"""Answers to deliveries, as the contract of RescheduleSource names them."""

import dataclasses
import math

NEVER = "never"
# The longest wait in seconds that a source takes: 100 years.
MAX_WAIT = 876_600.0 * 3600


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a delivery is answered with."""

    status: int
    text: str = ""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


def after(seconds: float) -> str:
    """A duration that is never shorter than the seconds, below 100 years."""
    milliseconds = math.ceil(min(max(0.0, seconds), MAX_WAIT) * 1000)
    return f"{milliseconds}ms"


def again(status: int, seconds: float | None, text: str = "") -> Answer:
    """An answer after which the key is due again in so many seconds."""
    return Answer(status, text, {} if seconds is None else {"Reschedule-After": after(seconds)})
