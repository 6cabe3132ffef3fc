"""Run parts of forward passes: with residuals that arrive while the network runs (Katz, sections 5 and 9.7), and on
deep features of an earlier step of the same image (DeepCache, Ma et al. 2023).

A pass stops at a missing residual: a UNet's after its first half, a transformer's after one of its blocks. The request
stores the encoding so far and continues from it in any later batch.

With features, each request's steps alternate by its own schedule (`DenoisingRequest.full_steps`), so a batch has two
passes: one through the whole network, and a short one through the outer layers with each row's features of its last
whole pass.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pentimento.diffusion.engine.denoiser import Denoiser
from pentimento.diffusion.engine.job import EngineJob
from pentimento.diffusion.engine.probe import example_input, rows_of
from pentimento.diffusion.engine.rows import RowBuffers
from pentimento.diffusion.families.model import BatchKey, DenoiserEncoding, DiffusionModel


def has_features(model: DiffusionModel) -> bool:
    """Return whether the network has deep features, by one pass of a single row."""
    key = BatchKey(model.info.default_width_px, model.info.default_height_px, guided=False)
    with torch.inference_mode():
        return model.predict_and_keep(example_input(model, key, 1))[1] is not None


def reused_step_share(model: DiffusionModel, denoiser: Denoiser, key: BatchKey, step_s: float) -> float:
    """Return the seconds of a step of one image that reuses deep features ÷ `step_s`, those of a whole one; 0 for a
    network without deep features."""
    with torch.inference_mode():
        inputs = example_input(model, key, rows_of(key))
        features = denoiser.predict_and_keep(inputs)[1]
        if features is None or step_s <= 0.0:
            return 0.0
        denoiser.predict_from(inputs, features)  # includes one-time work
        began_at = time.monotonic()
        # The transfer waits for the device.
        denoiser.predict_from(inputs, features).flatten()[0].item()
        return min((time.monotonic() - began_at) / step_s, 1.0)


def by_pass(jobs: Sequence[EngineJob]) -> Iterator[list[EngineJob]]:
    """Yield the requests of a batch by the pass that they share: requests that reuse features first, and requests that
    keep features apart from others that wait for residuals."""
    reusing = [job for job in jobs if job.begun.reuses_features]
    whole = [job for job in jobs if not job.begun.reuses_features]
    keeping = [job for job in whole if job.begun.keeps_features] if any(job.is_split for job in whole) else []
    yield from (part for part in (reusing, keeping, [job for job in whole if job not in keeping]) if part)


def predicted(denoiser: Denoiser, rows: RowBuffers, seated: Sequence[EngineJob]) -> Tensor:
    """Return the prediction of the seated requests of one pass. Features are kept for requests that reuse them next."""
    inputs = rows.input(seated)
    if seated[0].begun.reuses_features:
        prediction = denoiser.predict_from(inputs, rows.features(seated))
        for job in seated:
            job.begun.reused_count += 1
        return prediction
    for job in seated:
        job.begun.features = None  # not in memory at the same time as the new ones
    if not any(job.begun.keeps_features for job in seated):
        return denoiser.predict(inputs)
    prediction, features = denoiser.predict_and_keep(inputs)
    for job, part in zip(seated, features.split(rows.rows_each) if features is not None else (), strict=False):
        # A copy: a view would hold the features of the whole batch.
        job.begun.features = part.clone() if job.begun.keeps_features else None
    return prediction


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
