"""A device's finisher: pictures are decoded and encoded one after the other, beside the steps of others."""

from collections.abc import Callable
from typing import Generic

from lab.emulation.jobs import EmulatedJob, Owner, Timers


class EmulatedFinisher(Generic[Owner]):
    """`done` is called with each job when its picture is encoded."""

    def __init__(self, timers: Timers, done: Callable[[EmulatedJob[Owner]], None]) -> None:
        self._timers = timers
        self._done = done
        self._free_s = 0.0
        # A dict for its order.
        self._jobs: dict[EmulatedJob[Owner], None] = {}

    @property
    def jobs(self) -> list[EmulatedJob[Owner]]:
        """Those whose pictures are being decoded or wait for it, in the order in which they came."""
        return list(self._jobs)

    @property
    def idle(self) -> bool:
        """Whether it has nothing to decode."""
        return not self._jobs

    def take(self, job: EmulatedJob[Owner]) -> None:
        """Changes state: decode the job's latent, which was there at `denoised_s`, in `finish_s` seconds."""
        if job.finish_s == 0.0:
            return self._done(job)
        self._jobs[job] = None
        self._free_s = max(self._free_s, job.denoised_s) + job.finish_s
        self._timers.at(self._free_s, self._finished, job)

    def forget(self) -> None:
        """Changes state: nobody hears of what it has; for how long it is busy it keeps."""
        self._jobs.clear()

    def _finished(self, job: EmulatedJob[Owner]) -> None:
        if job in self._jobs:
            del self._jobs[job]
            self._done(job)
