"""Run forward passes with residuals that arrive while the network runs (Katz, sections 5 and 9.7).

A pass stops at a missing residual: a UNet's after its first half, a transformer's after one of its blocks. The request
stores the encoding so far and continues from it in any later batch.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pentimento.diffusion.engine.denoiser import Denoiser
from pentimento.diffusion.engine.job import EngineJob
from pentimento.diffusion.engine.rows import RowBuffers
from pentimento.diffusion.families.model import DenoiserEncoding


class SplitPasses:
    """Run a batch's passes until a residual is missing. `poll` takes the residuals that have arrived for a request, and
    ends a request that cannot continue. The engine's thread only."""

    def __init__(
        self, denoiser: Denoiser, poll: Callable[[EngineJob], bool | None], monotonic: Callable[[], float]
    ) -> None:
        self._denoiser = denoiser
        self._poll = poll
        self._monotonic = monotonic
        # The requests computed last, and their encoding.
        self._seated: list[EngineJob] = []
        self._encoding = DenoiserEncoding()

    def run(self, rows: RowBuffers, jobs: Sequence[EngineJob]) -> tuple[list[EngineJob], Tensor]:
        """Return the jobs that had all residuals by the end, in the order of their rows, and their prediction. The
        other jobs keep the encoding of their step."""
        try:
            begun = rows.seat([job for job in jobs if job.encoding is None])
            if begun:
                self._keep(rows, begun, self._denoiser.encode(rows.input(begun, controlled=False)))
            while (part := self._next_part(jobs)) is not None:
                self._advance(rows, *part)
            return self._decode(rows, [job for job in jobs if job.encoding is not None and not job.awaits_residuals])
        finally:
            self._seated, self._encoding = [], DenoiserEncoding()

    def _next_part(self, jobs: Sequence[EngineJob]) -> tuple[list[EngineJob], int] | None:
        """Return the advanceable jobs with the fewest blocks done, and the number of blocks after which a job stops or
        all catch up with the next ones; None if that is the end of the network."""
        now = self._monotonic()
        for job in jobs:
            if job.encoding is not None:
                self._poll(job)
                job.note_wait(now)
        places = [(job.encoding, job) for job in jobs if job.encoding is not None and job.may_advance]
        done = sorted({encoding.blocks_done for encoding, _ in places})
        behind = [job for encoding, job in places if encoding.blocks_done == done[0]]
        stops = [*done[1:2], *(job.reach for job in behind)]
        return (behind, min(stops)) if places and min(stops) < places[0][0].block_count else None

    def _advance(self, rows: RowBuffers, jobs: Sequence[EngineJob], blocks_done: int) -> None:
        seated = rows.seat(jobs)
        inputs = rows.input(seated)
        encoding = self._together(seated, inputs.latents.shape[0])
        self._keep(rows, seated, self._denoiser.advance(inputs, encoding, blocks_done))

    def _decode(self, rows: RowBuffers, jobs: Sequence[EngineJob]) -> tuple[list[EngineJob], Tensor]:
        seated = rows.seat(jobs)
        if not seated:
            return [], torch.empty(0, 1)
        inputs = rows.input(seated)
        return seated, self._denoiser.decode(inputs, self._together(seated, inputs.latents.shape[0]))

    def _keep(self, rows: RowBuffers, seated: list[EngineJob], encoding: DenoiserEncoding) -> None:
        self._seated, self._encoding = seated, encoding
        for place, job in enumerate(seated):
            job.encoding = encoding.rows(place * rows.rows_each, (place + 1) * rows.rows_each)

    def _together(self, seated: list[EngineJob], row_count: int) -> DenoiserEncoding:
        if seated == self._seated:
            return self._encoding
        parts = [job.encoding for job in seated if job.encoding is not None]
        return DenoiserEncoding.concatenate(parts, row_count)
