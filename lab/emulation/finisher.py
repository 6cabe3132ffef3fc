"""Finish images of a device: decode and encode them one after the other, while other requests denoise."""

from collections.abc import Callable
from typing import Generic

from lab.emulation.jobs import EmulatedJob, Owner, Timers


class EmulatedFinisher(Generic[Owner]):
    """Call `done` with each job after its image is encoded."""

    def __init__(self, timers: Timers, done: Callable[[EmulatedJob[Owner]], None]) -> None:
        self._timers = timers
        self._done = done
        self._free_s = 0.0
        # A dict for its order.
        self._jobs: dict[EmulatedJob[Owner], None] = {}

    @property
    def jobs(self) -> list[EmulatedJob[Owner]]:
        """Return the jobs in decoding or waiting for it, in arrival order."""
        return list(self._jobs)

    @property
    def idle(self) -> bool:
        """Return whether it has nothing to decode."""
        return not self._jobs

    def take(self, job: EmulatedJob[Owner]) -> None:
        """Decode the job's latent, which exists from `denoised_s` on, in `finish_s` seconds."""
        if job.finish_s == 0.0:
            return self._done(job)
        self._jobs[job] = None
        self._free_s = max(self._free_s, job.denoised_s) + job.finish_s
        self._timers.at(self._free_s, self._finished, job)

    def forget(self) -> None:
        """Drop all jobs without calling `done`; the finisher stays busy for the rest of their time."""
        self._jobs.clear()

    def _finished(self, job: EmulatedJob[Owner]) -> None:
        if job in self._jobs:
            del self._jobs[job]
            self._done(job)
