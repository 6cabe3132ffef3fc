"""Reuse deep features of a network's forward pass at later steps of the same image (DeepCache, Ma et al. 2023).

Each request's steps alternate by its own schedule (`DenoisingRequest.full_steps`), so a batch has two passes: one
through the whole network, and a short one through the outer layers with each row's features of its last whole pass.
"""

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pentimento.diffusion.engine.denoiser import Denoiser
from pentimento.diffusion.engine.job import EngineJob
from pentimento.diffusion.engine.probe import example_input, rows_of
from pentimento.diffusion.engine.rows import RowBuffers
from pentimento.diffusion.families.model import BatchKey, DiffusionModel


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
