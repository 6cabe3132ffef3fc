"""Measure a model's cost on this device through the engine's loop: e(b) step by step, preparing, decoding, encoding,
memory. `pentimento profile cost` stores it."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart
from pentimento.diffusion.device import peak_bytes_of
from pentimento.diffusion.engine import BatchReport, Denoiser, EngineObserver
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.diffusion.image_generation import generate_batch, study_loop
from pentimento.diffusion.images import encode_pixels
from pentimento.domain.generation import GenerationSpec
from pentimento.profiles.costs import BatchProfile, Cost, SizeProfile


@dataclass(frozen=True)
class ProfiledBatch:
    """Describe a load: batches of `batch_size` images of `spec`, generated `repeats` times after one uncounted run."""

    spec: GenerationSpec
    batch_size: int
    repeats: int


def profile_batches(
    model: DiffusionModel, denoiser: Denoiser, loads: Iterable[ProfiledBatch]
) -> Iterator[BatchProfile]:
    """Yield profiles from small batches to large; skip batches that the device has no memory for."""
    too_much: set[BatchKey] = set()
    for load in sorted(loads, key=lambda load: load.batch_size):
        key = model.info.batch_key(load.spec)
        if key in too_much:
            continue
        if (profile := profile_batch(model, denoiser, load)) is not None:
            yield profile
        else:
            too_much.add(key)


def profile_batch(model: DiffusionModel, denoiser: Denoiser, load: ProfiledBatch) -> BatchProfile | None:
    """Return the cost of every step of every repetition; None if the device has no memory for it. Raises the error of a
    failed request."""
    run = _Run(model, denoiser, load)
    peak = peak_bytes_of(model.device, run.generate)  # the first run includes one-time costs
    step_seconds = [run.generate() for _ in range(load.repeats)]
    if run.ran_out:
        return None
    key = model.info.batch_key(load.spec)
    steps = tuple(Cost.of(samples) for samples in zip(*step_seconds, strict=True))
    return BatchProfile(key.width_px, key.height_px, key.guided, load.batch_size, steps, peak)


@torch.inference_mode()
def profile_size(model: DiffusionModel, denoiser: Denoiser, spec: GenerationSpec, repeats: int) -> SizeProfile:
    """Return the cost of the work done once for each image of that size."""
    run = _Run(model, denoiser, ProfiledBatch(replace(spec, num_inference_steps=1), 1, repeats))
    for _ in range(repeats + 1):
        run.generate()
    latent = run.latents[-1]
    pixels = model.decode_latent(latent)
    return SizeProfile(
        spec.width_px,
        spec.height_px,
        Cost.of(run.prepare_seconds[1:]),
        _cost(model, repeats, lambda: model.decode_latent(latent)),
        _cost(model, repeats, lambda: encode_pixels(pixels, "png")),
    )


def _cost(model: DiffusionModel, repeats: int, work: Callable[[], object]) -> Cost:
    return Cost.of([_seconds(model.device, work) for _ in range(repeats + 1)][1:])


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


@dataclass
class _Measured(EngineObserver):
    """Collect the events of one batch of requests in its loop."""

    step_seconds: list[float] = field(default_factory=list)
    ran_out: bool = False

    def ran(self, report: BatchReport) -> None:
        self.step_seconds.append(report.seconds)

    def ran_out_of_memory(self, request_count: int) -> None:
        self.ran_out = True


class _Run:
    """Run one loop repeatedly; every request has a different prompt, so that no cache helps."""

    def __init__(self, model: DiffusionModel, denoiser: Denoiser, load: ProfiledBatch) -> None:
        self._load = load
        self._measured = _Measured()
        self._prompt_number = 0
        self.prepare_seconds: list[float] = []
        self.latents: list[Tensor] = []
        self._loop = study_loop(model, denoiser, load.batch_size, self._measured)

    @property
    def ran_out(self) -> bool:
        return self._measured.ran_out

    def generate(self) -> list[float]:
        """Return the seconds of each step. Raises the error of a failed request, except out of memory."""
        self._measured.step_seconds = []
        heard = generate_batch(self._loop, [self._next_request() for _ in range(self._load.batch_size)])
        errors = [one.error for one in heard if one.error is not None]
        if errors and not self.ran_out:
            raise errors[0]
        finished = [one.denoising for one in heard if one.denoising is not None]
        self.prepare_seconds += [one.prepared_at - one.started_at for one in finished]
        self.latents = [one.latent for one in finished]
        return self._measured.step_seconds

    def _next_request(self) -> DenoisingRequest:
        self._prompt_number += 1
        prompt = f"picture number {self._prompt_number}"
        return DenoisingRequest(replace(self._load.spec, prompt=prompt, seed=self._prompt_number), NoiseStart())
