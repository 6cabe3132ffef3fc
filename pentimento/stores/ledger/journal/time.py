"""Count the journal's own time: the seconds of its active frontdoors, independent of wall clocks.

Deadlines of accepted requests are measured by it after a restart. The gap between two frontdoors is taken from

    the boot clock             on one machine without a restart since
    the standby's own looks    if it saw the last beat
    the wall clocks            otherwise, 300 s at most: they may differ by hours

A clock that is behind counts as no time. A wrong clock costs a request 300 s at most; an outage that
no clock shows gives requests more time.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from pentimento.domain.clock import JUMP_S, Clock, SystemClock, boot_id, boot_s
from pentimento.stores.ledger.journal import tables
from pentimento.stores.ledger.statements import Statement
from pentimento.stores.ledger.writer import GroupCommitWriter

_COUNTED = Statement(select(*tables.epoch.c["counted_s", "wall_s", "boot_s", "boot_id"]))


@dataclass(frozen=True)
class CountedTime:
    """Hold the last write of the journal's holder: the seconds counted, and its clocks at that moment; all 0 before the
    first beat."""

    counted_s: float
    wall_s: float
    boot_s: float
    boot_id: str


def uncounted_s(last: CountedTime, now: CountedTime, watched_s: float | None) -> float:
    """Return the seconds between `last` and `now`. `watched_s`: seconds without a beat, as a standby counted."""
    if last.wall_s == 0.0:
        return 0.0
    # A system without boot ids has "" for each.
    if last.boot_id and last.boot_id == now.boot_id:
        return max(now.boot_s - last.boot_s, 0.0)
    if watched_s is not None:
        return watched_s
    return min(max(now.wall_s - last.wall_s, 0.0), JUMP_S)


class JournalTime:
    """Count the journal's time from `resume` on. Thread-safe."""

    def __init__(self, writer: GroupCommitWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        # For a clock that tests set, its monotonic time.
        self._boot: Callable[[], float] = boot_s if isinstance(clock, SystemClock) else clock.monotonic
        self.boot_id = boot_id()
        # The journal's time when the machine started.
        self._base_s: float | None = None

    @property
    def counted_s(self) -> float | None:
        """Return the journal's time; None before `resume`."""
        return None if self._base_s is None else self._base_s + self._boot()

    def resume(self, watched_s: float | None = None) -> "Future[None]":
        """Continue from the last holder's count, before the first beat. Changes nothing in the ledger."""
        return self._writer.submit(lambda connection: self._resume(connection, watched_s))

    def columns(self) -> dict[str, Any]:
        """Return the columns that a beat writes."""
        counted_s = self.counted_s
        return {} if counted_s is None else vars(self._at(counted_s))

    def _resume(self, connection: Connection, watched_s: float | None) -> None:
        last = CountedTime(*_COUNTED.rows(connection)[0])
        now = self._at(0.0)
        self._base_s = last.counted_s + uncounted_s(last, now, watched_s) - now.boot_s

    def _at(self, counted_s: float) -> CountedTime:
        return CountedTime(counted_s, self._clock.wall(), self._boot(), self.boot_id)
