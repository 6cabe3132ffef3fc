"""Decide when an image is generated a second time for comparison: sampling, off-peak hours, and bounds on the work.

Such an image is a *shadow*: a hit from noise, or a miss from a cached start that is not allowed yet. No client
requested it. It starts while no request waits and its worker is idle, and is stopped first; or it is paid for by a
share of the device seconds of all images, and runs among the requests.
"""

import hashlib
from dataclasses import dataclass

_DRAWS = 1 << 64


def is_sampled(request_id: str, share: float) -> bool:
    """Return whether a hit is in the `share` (0..1) that is generated again; always the same for one `request_id`."""
    draw = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big")
    return draw < share * _DRAWS


@dataclass(frozen=True)
class IdleWorker:
    """Describe a worker as the dispatcher sees it: its known and presumed attempts, its credits, and whether it is
    eligible for an attempt."""

    worker_id: str
    used_count: int
    credit_count: int
    eligible: bool


@dataclass(frozen=True)
class SuiteLoad:
    """Describe the load at one moment: accepted requests without a worker, requests with one, seconds since the last
    request arrived (`quiet_s`), and the workers that hold the shadow's model."""

    waiting_count: int
    running_count: int
    quiet_s: float
    workers: tuple[IdleWorker, ...]


def shadow_worker(load: SuiteLoad, least_quiet_s: float) -> str | None:
    """Return an idle worker that may generate a shadow now; None while a request of the suite waits or runs, as its
    devices may share one machine, or arrived less than `least_quiet_s` ago."""
    if load.waiting_count or load.running_count or load.quiet_s < least_quiet_s:
        return None
    idle = (worker for worker in load.workers if worker.eligible and not worker.used_count and worker.credit_count)
    return min((worker.worker_id for worker in idle), default=None)


def busy_worker(load: SuiteLoad) -> str | None:
    """Return the worker with most free places for a shadow that is paid for; None without an eligible worker."""
    eligible = (worker for worker in load.workers if worker.eligible and worker.credit_count)
    return min(((one.used_count - one.credit_count, one.worker_id) for one in eligible), default=(0, None))[1]


class ShadowBudget:
    """Budget the seconds of shadows: at most `work_share` of the elapsed time, saved up to `most_saved_s`.

    Times are seconds on one monotonic clock. The caller limits each shadow to the seconds left, so that the bound holds
    however long an image takes.
    """

    def __init__(self, work_share: float, most_saved_s: float, now: float) -> None:
        self._work_share = work_share
        self._most_saved_s = most_saved_s
        self._saved_s = 0.0
        self._at = now

    def left_s(self, now: float) -> float:
        """Return the seconds that a shadow starting now may take; adds the savings of the elapsed time."""
        passed_s = max(now - self._at, 0.0)
        self._at = max(now, self._at)
        self._saved_s = min(self._saved_s + passed_s * self._work_share, self._most_saved_s)
        return max(self._saved_s, 0.0)

    def earn(self, device_s: float) -> float:
        """Add the share of an image's device seconds, and return the seconds saved up. Call it instead of `left_s` for
        a budget of device seconds."""
        self._saved_s = min(self._saved_s + device_s * self._work_share, self._most_saved_s)
        return self._saved_s

    def spend(self, seconds: float) -> None:
        """Subtract the seconds that a shadow took, whether or not it finished."""
        self._saved_s -= seconds
