"""Time whole images from the prompt to the final latents: our engine as a worker runs it, and diffusers' pipelines,
over networks of random weights; with energy if the device reports it (rows of `gpu_rows`).
"""

import gc
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from diffusers import StableDiffusionXLPipeline
from torch import Tensor

from benchmarks.gpu_checkpoints import saved_pipeline
from benchmarks.gpu_networks import SIZES, NetworkSize
from benchmarks.gpu_setup import GpuSetup, RowResult, name_of, reason_of
from lab.fixtures.latent_listener import generated_together
from lab.runs.measure import Figure, Target, at_most, informative, measured
from pentimento.devices.choices import CompileMode
from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart
from pentimento.diffusion.device import open_counter
from pentimento.diffusion.engine import CompiledDenoiser, Denoiser, EngineSettings, StepEngine, cuda_recorder, replaying
from pentimento.diffusion.families import BatchKey, DiffusionModel, load_model
from pentimento.diffusion.kernels import fuse, kernels_for
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import GenerationSpec

STEPS, TINY_STEPS = 30, 2
GUIDANCE_SCALE = 7.5
ROUNDS = 10
PEER, COMPILED_PEER = "diffusers", "diffusers, compiled with graphs"
EAGER, OURS = "ours, eager", "ours"
# the targets of `engine_latency`
RATIOS = {EAGER: (PEER, 0.88), OURS: (COMPILED_PEER, 0.95)}

# Generate the images of a round from its number, and return their final latents.
Generate = Callable[[int], Tensor]


def image_row(setup: GpuSetup, network: str, count: str = "1") -> RowResult:
    """Time `count` guided images in one batch."""
    result, size, dtype = RowResult(), SIZES[network, setup.tiny], setup.dtypes()[0]
    image_count = int(count)
    name = f"{size.name}, {image_count} at once, {name_of(dtype)}"
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        pipeline = saved_pipeline(setup, size, dtype, Path(folder))
        generators: dict[str, Generate] = {PEER: _diffusers_generate(setup, pipeline, image_count)}
        generators[EAGER] = _engine_generate(setup, _loaded(setup, folder, dtype), size, image_count, captures=False)
        ways: dict[str, Callable[[], Generate]] = {
            OURS: lambda: _ours(setup, folder, dtype, size, image_count),
            COMPILED_PEER: lambda: _diffusers_generate(setup, compiled_peer(setup, pipeline), image_count),
        }
        for way, make in ways.items():
            try:
                generators[way] = make()
            except (PentimentoError, RuntimeError) as error:
                result.not_run[f"{name}: {way}"] = reason_of(error)
        gc.collect()
        result.figures += _figures(setup, name, image_count, generators)
    return result


@dataclass(frozen=True)
class GeneratedRound:
    """Store one round of one way; `joules` is None if the device does not report energy."""

    latents: Tensor
    milliseconds: float
    joules: float | None


def _generated(
    setup: GpuSetup, generate: Generate, number: int, image_count: int, counter: Callable[[], float] | None
) -> GeneratedRound:
    """Measure time and energy of an image."""
    found: list[Tensor] = []
    before = counter() if counter is not None else 0.0
    seconds = setup.seconds(lambda: found.append(generate(number)))
    joules = (counter() - before) / image_count if counter is not None else None
    return GeneratedRound(found[0], 1e3 * seconds / image_count, joules)


def _figures(setup: GpuSetup, name: str, image_count: int, generators: Mapping[str, Generate]) -> list[Figure]:
    counter = open_counter(setup.device) if setup.device.type == "cuda" else None
    rounds: list[dict[str, GeneratedRound]] = []
    for number in range(min(setup.rounds, ROUNDS) + 1):
        rounds.append({way: _generated(setup, each, number, image_count, counter) for way, each in generators.items()})
    kept = rounds[1:]
    times = {way: [one[way].milliseconds for one in kept] for way in generators}
    joules = {way: [one[way].joules or 0.0 for one in kept] for way in generators if counter is not None}
    figures = []
    for way, (peer, limit) in RATIOS.items():
        if {way, peer} <= times.keys():
            figures += _compared(name, times, way, peer, at_most(limit, "x"))
            spent = list(zip(joules.get(way, ()), joules.get(peer, ()), strict=True))
            if sum(theirs for _, theirs in spent):  # the counter may not have moved within a few milliseconds
                figures.append(measured(f"{name}: {way} / {peer}, joules", spent, _ratio_of_sums, informative("x")))
    if OURS in times:
        figures += _compared(name, times, OURS, PEER, informative("x"))
    figures += [measured(f"{name}: {way}", taken, median, informative("ms")) for way, taken in times.items()]
    figures += [measured(f"{name}: {way}, joules", taken, median, informative("J")) for way, taken in joules.items()]
    for way in generators.keys() - {PEER}:
        found = [_distance(one[way].latents, one[PEER].latents) for one in rounds]
        target = at_most(1e-3) if way == EAGER else informative()
        figures.append(measured(f"{name}: {way}: distance from diffusers' latents", found, max, target))
    return figures


def _compared(name: str, taken: Mapping[str, list[float]], way: str, peer: str, target: Target) -> list[Figure]:
    ratios = [ours / theirs for ours, theirs in zip(taken[way], taken[peer], strict=True)]
    return [measured(f"{name}: {way} / {peer}", ratios, median, target)]


def _ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(ours for ours, _ in pairs) / max(sum(theirs for _, theirs in pairs), 1e-9)


def _distance(ours: Tensor, theirs: Tensor) -> float:
    """Return the distance of all latents, as a share of their length."""
    theirs = theirs.float().cpu()
    return float((ours.float().cpu() - theirs).norm() / theirs.norm())


def _steps(setup: GpuSetup) -> int:
    return TINY_STEPS if setup.tiny else STEPS


def _prompts(number: int, image_count: int) -> list[str]:
    """Return prompts that never repeat, so that no cache helps."""
    return [f"a red circle, number {number} of {place}" for place in range(image_count)]


def _seeds(number: int, image_count: int) -> list[int]:
    return [1000 * number + place for place in range(image_count)]


def _diffusers_generate(setup: GpuSetup, pipeline: Any, image_count: int) -> Generate:
    def generate(number: int) -> Tensor:
        latents: Tensor = pipeline(
            _prompts(number, image_count),
            num_inference_steps=_steps(setup),
            guidance_scale=GUIDANCE_SCALE,
            generator=[torch.Generator().manual_seed(seed) for seed in _seeds(number, image_count)],
            output_type="latent",
        ).images
        return latents

    return generate


def compiled_peer(setup: GpuSetup, pipeline: Any) -> Any:
    """Return a pipeline with separate weights and all optimisations that diffusers recommends: network and decoder
    channels last, one graph each, replayed as CUDA graphs."""
    setup.check_graphs()
    unet, vae = (_twin(setup, part).to(memory_format=torch.channels_last) for part in (pipeline.unet, pipeline.vae))
    compiled = type(pipeline)(**{**pipeline.components, "unet": unet, "vae": vae}, **_unsaved(pipeline))
    compiled.unet = torch.compile(unet, mode="reduce-overhead", fullgraph=True, dynamic=False)
    vae.decode = torch.compile(vae.decode, mode="reduce-overhead", fullgraph=True, dynamic=False)
    compiled.set_progress_bar_config(disable=True)
    return compiled


def _twin(setup: GpuSetup, network: Any) -> Any:
    with setup.device:
        twin = type(network).from_config(network.config)
    twin.to(network.dtype).load_state_dict(network.state_dict())
    return twin.eval().requires_grad_(False)


def _unsaved(pipeline: Any) -> dict[str, Any]:
    is_xl = isinstance(pipeline, StableDiffusionXLPipeline)
    return {"add_watermarker": False} if is_xl else {"requires_safety_checker": False}


def _loaded(setup: GpuSetup, folder: str, dtype: torch.dtype) -> DiffusionModel:
    return load_model(Path(folder), setup.device, dtype)


def _ours(setup: GpuSetup, folder: str, dtype: torch.dtype, size: NetworkSize, image_count: int) -> Generate:
    """Return our engine with a GPU worker's defaults."""
    kernels = kernels_for(setup.device)
    model = _loaded(setup, folder, dtype)
    assert kernels is not None
    fuse(model.denoiser, kernels)
    return _engine_generate(setup, model, size, image_count, captures=True)


def _engine_generate(
    setup: GpuSetup, model: DiffusionModel, size: NetworkSize, image_count: int, *, captures: bool
) -> Generate:
    denoiser: Denoiser = Denoiser(model)
    if captures:
        compiler = replaying(cuda_recorder(setup.device))
        model.record_texts(compiler)
        denoiser = CompiledDenoiser(model, CompileMode.CAPTURE, compiler, halves=True)
    engine = StepEngine(model, EngineSettings(), denoiser=denoiser)
    engine.start()
    if isinstance(denoiser, CompiledDenoiser):
        key, warmed = BatchKey(size.side_px, size.side_px, guided=True), denoiser
        engine.call(lambda: warmed.warm(key, (image_count,))).result()
    side, scheduler = size.side_px, model.info.schedulers[0]

    def generate(number: int) -> Tensor:
        rest = (side, side, _steps(setup), GUIDANCE_SCALE, scheduler)
        prompts = zip(_prompts(number, image_count), _seeds(number, image_count), strict=True)
        specs = (GenerationSpec(prompt, "", "", *rest, seed) for prompt, seed in prompts)
        return torch.cat(generated_together(engine, (DenoisingRequest(spec, NoiseStart()) for spec in specs)))

    return generate
