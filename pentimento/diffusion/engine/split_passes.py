"""Forward passes of pictures whose residuals come while the network runs (Katz, sections 5 and 9.7).

A pass stops where a residual is missing: of a UNet behind its first half, of a transformer behind one of its blocks.
What it made until there is kept by the picture, which goes on from it in whatever batch it then shares.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pentimento.diffusion.engine.denoiser import Denoiser
from pentimento.diffusion.engine.job import EngineJob
from pentimento.diffusion.engine.rows import RowBuffers
from pentimento.diffusion.families.model import DenoiserEncoding


class SplitPasses:
    """Runs as much of a batch's passes as its residuals allow. `poll` takes what has come of a picture's; it ends a
    picture that cannot go on. The engine's thread only."""

    def __init__(
        self, denoiser: Denoiser, poll: Callable[[EngineJob], bool | None], monotonic: Callable[[], float]
    ) -> None:
        self._denoiser = denoiser
        self._poll = poll
        self._monotonic = monotonic
        # The rows that were computed last, and what they are kept as.
        self._seated: list[EngineJob] = []
        self._encoding = DenoiserEncoding()

    def run(self, rows: RowBuffers, jobs: Sequence[EngineJob]) -> tuple[list[EngineJob], Tensor]:
        """Return those of the jobs whose residuals have come by the end, in the order of their rows, and what the
        network predicts for them. The others keep what was made of their step."""
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
        """Who is farthest behind of those that may go on, and behind how many blocks one of them stops, or they meet
        others; None where that is the end."""
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
