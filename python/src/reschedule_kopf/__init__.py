"""Runs the handlers of a kopf operator behind a RescheduleSource.

kopf itself runs: its registries, filters, causes, progress, retries and patches. Two things are replaced: the timers,
which the source keeps, and the watches, in whose place each delivery names the object to read.
"""

from reschedule_kopf.operator import run

__all__ = ["run"]
