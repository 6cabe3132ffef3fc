"""When a hit is painted again from noise, and when not: what is sampled, off-peak hours, and a bound on the work.

Such a picture is a *shadow*. It is nobody's request: it may start only while nobody waits and its worker has nothing
to do, it goes first, and all of them together take at most a share of the time.
"""

import hashlib
from dataclasses import dataclass
from enum import Enum

_DRAWS = 1 << 64


def is_sampled(request_id: str, share: float) -> bool:
    """Return whether a hit is one of the `share` (0..1) that is painted again; the same for every time it is asked."""
    draw = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big")
    return draw < share * _DRAWS


class GivesWay(Enum):
    """For whom a shadow is stopped: for any request of the suite, whose devices may be one machine's, or for those
    alone that its own worker is given."""

    SUITE = "suite"
    WORKER = "worker"


@dataclass(frozen=True)
class IdleWorker:
    """A worker as the dispatcher sees it: attempts that it has or is thought to have, its credits, and whether it may
    be given any."""

    worker_id: str
    used_count: int
    credit_count: int
    eligible: bool


@dataclass(frozen=True)
class SuiteLoad:
    """What goes on at one moment: requests that were taken in and have no worker yet, those that have one, for how many
    seconds nobody has come, and the workers that hold the model wanted."""

    waiting_count: int
    running_count: int
    quiet_s: float
    workers: tuple[IdleWorker, ...]


def shadow_worker(load: SuiteLoad, least_quiet_s: float, gives_way: GivesWay) -> str | None:
    """Return the worker that may paint a shadow now, or None: only while nobody waits and nobody has come for a while,
    on a worker that has nothing to do at all, and, where it gives way to the suite, while no other has."""
    if load.waiting_count or load.quiet_s < least_quiet_s:
        return None
    if load.running_count and gives_way is GivesWay.SUITE:
        return None
    idle = (worker for worker in load.workers if worker.eligible and not worker.used_count and worker.credit_count)
    return min((worker.worker_id for worker in idle), default=None)


class ShadowBudget:
    """Seconds of shadows: at most `work_share` of the time that passes, saved up to `most_saved_s`.

    Times are seconds on one monotonic clock. Whoever starts a shadow bounds it by what is left, so that the bound
    holds whatever a picture takes.
    """

    def __init__(self, work_share: float, most_saved_s: float, now: float) -> None:
        self._work_share = work_share
        self._most_saved_s = most_saved_s
        self._saved_s = 0.0
        self._at = now

    def left_s(self, now: float) -> float:
        """Return what a shadow that starts now may take. Changes state: time has passed."""
        passed_s = max(now - self._at, 0.0)
        self._at = max(now, self._at)
        self._saved_s = min(self._saved_s + passed_s * self._work_share, self._most_saved_s)
        return max(self._saved_s, 0.0)

    def spend(self, seconds: float) -> None:
        """Take off what a shadow took, whatever came of it."""
        self._saved_s -= seconds
