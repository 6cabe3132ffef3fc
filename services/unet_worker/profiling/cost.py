"""Profile a model's costs: load it as the worker does, and measure every batch that the settings name."""

import importlib.metadata
import itertools
import logging
import re
import time
from collections.abc import Iterable, Iterator

import torch

from pentimento.devices.choices import CompileMode
from pentimento.diffusion.device import device_memory, device_name, used_bytes
from pentimento.diffusion.engine import CompiledDenoiser, Denoiser
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.kernels import runs_kernels
from pentimento.diffusion.profiling import ProfiledBatch, profile_batches, profile_size
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import GenerationSpec, promptless
from pentimento.files.safetensors_header import model_name
from pentimento.profiles.costs import BatchProfile, ModelProfile
from services.unet_worker.models.checkpoint_loading import compile_mode, denoiser_for, load_checkpoint
from services.unet_worker.profiling.settings import ProfileSettings

logger = logging.getLogger(__name__)

STEPS = 10  # steps of an image if no number is given
REPEATS = 5  # measured images of each kind, after one that is not
SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


def measure(settings: ProfileSettings) -> ModelProfile:
    """Measure the costs, in seconds to minutes, with a log line per batch. Raises InvalidArgument for a bad or no
    size."""
    if not settings.batch_sizes:
        raise InvalidArgument.of("batch_sizes", "names no batch size to measure")
    study = settings.study
    torch.set_num_threads(study.threads)
    model = load_checkpoint(settings.model, study.device, study.dtype, settings.study.compile, study.weights)
    device = model.device
    idle_memory_bytes = used_bytes(device)
    denoiser = _warmed(model, settings)
    specs = list(_specs(model, settings))
    loads = [ProfiledBatch(spec, size, REPEATS) for spec in specs for size in settings.batch_sizes]
    return ModelProfile(
        model=model_name(settings.model),
        model_digest=model.info.model_digest,
        device=device_name(device),
        dtype=str(model.dtype).removeprefix("torch."),
        threads=study.threads,
        execution=_execution(settings, device),
        step_count=settings.steps or STEPS,
        sizes=tuple(profile_size(model, denoiser, spec, REPEATS) for spec in _one_a_size(specs)),
        batches=tuple(_logged(profile_batches(model, denoiser, loads))),
        device_memory_bytes=device_memory(device).total_bytes,
        idle_memory_bytes=idle_memory_bytes,
        build_version=importlib.metadata.version("pentimento"),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _execution(settings: ProfileSettings, device: torch.device) -> str:
    mode = compile_mode(settings.study.compile, device)
    return f"{mode.value}+fused" if mode is not CompileMode.OFF and runs_kernels(device) else mode.value


def _warmed(model: DiffusionModel, settings: ProfileSettings) -> Denoiser:
    denoiser = denoiser_for(model, settings.study.compile)
    if isinstance(denoiser, CompiledDenoiser):
        with torch.inference_mode():
            for key in dict.fromkeys(map(model.info.batch_key, _specs(model, settings))):
                denoiser.warm(key, settings.batch_sizes)
    return denoiser


def _specs(model: DiffusionModel, settings: ProfileSettings) -> Iterator[GenerationSpec]:
    for size_px, guidance in itertools.product(_sizes(model, settings), settings.guidance_scales):
        yield promptless(settings.model.name, size_px, settings.steps or STEPS, guidance, model.info.schedulers[0])


def _sizes(model: DiffusionModel, settings: ProfileSettings) -> list[tuple[int, int]]:
    info = model.info
    sizes = [parse_size(text) for text in settings.sizes] or [(info.default_width_px, info.default_height_px)]
    for size in sizes:
        if any(side % info.size_multiple_px for side in size):
            raise InvalidArgument.of("sizes", f"must be multiples of {info.size_multiple_px} pixels, got {size}")
    return sizes


def parse_size(text: str) -> tuple[int, int]:
    found = SIZE.fullmatch(text)
    if found is None:
        raise InvalidArgument.of("sizes", f"must be WIDTHxHEIGHT in pixels, got {text[:50]!r}")
    return int(found[1]), int(found[2])


def _one_a_size(specs: Iterable[GenerationSpec]) -> Iterable[GenerationSpec]:
    """Return one request for each size, guided if any is: preparing a guided image takes longer."""
    ordered = sorted(specs, key=lambda spec: spec.guidance_scale)
    return {(spec.width_px, spec.height_px): spec for spec in ordered}.values()


def _logged(batches: Iterable[BatchProfile]) -> Iterator[BatchProfile]:
    for batch in batches:
        logger.info("%dx%d, batch of %d", batch.width_px, batch.height_px, batch.batch_size)
        yield batch
