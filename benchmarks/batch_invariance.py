"""Compare a request's latents alone with the same request inside changing batches, and two plays of one batch history.

Random histories (arrival steps, noise or latent starts, samplers, guidance, step counts, cancellations) are played
through the engine's loop, each twice. Every finished image is compared with the same image alone. The contract per
precision:

- float32: within 1e-4 of the image alone; the same history gives the same bits
- float16, bfloat16: the same history gives the same bits; the difference from the image alone is reported, not bounded

In half precision, the difference from the same image alone in float32 is reported too, since it is another arithmetic.
The engine restricts some layers to the kernels that a lone image gets. The cost is the processor time of a guided
batch's forward pass with them restricted, over that of a pass as torch runs it, alternating.
"""

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lab.fixtures.latent_listener import LatentListener
from lab.runs.intervals import paired_ratio
from lab.runs.measure import Figure, Options, at_most, counted, informative, measured, parse_options, publish
from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart, denoise_step, prepare
from pentimento.diffusion.engine import (
    BatchLimits,
    Denoiser,
    EngineJob,
    EngineObserver,
    EngineSettings,
    StepLoop,
)
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families import AsAlone, BatchKey, DenoiserInput, DiffusionModel, load_model
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.errors import Cancelled
from pentimento.domain.generation import GenerationSpec
from pentimento.supervisor.models import find_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TARGET = at_most(1e-4)
MAX_BATCH = 6
STOP = Cancelled("CANCELLED", "stopped by the history")


@dataclass(frozen=True)
class Joining:
    """Store a request, its arrival tick, and its cancellation tick (-1: never)."""

    request: DenoisingRequest
    comes_at: int
    stopped_at: int


def history_of(model: DiffusionModel, seed: int, count: int, steps: Sequence[int]) -> list[Joining]:
    """Return `count` requests by arrival tick; a fifth is cancelled while running."""
    generator = random.Random(seed)
    joining = [
        Joining(
            request_of(model, generator, 1000 * seed + number, generator.choice(steps)),
            generator.randrange(2 * max(steps)),
            generator.randrange(3 * max(steps)) if generator.random() < 0.2 else -1,
        )
        for number in range(count)
    ]
    return sorted(joining, key=lambda one: one.comes_at)


def request_of(model: DiffusionModel, generator: random.Random, seed: int, steps: int) -> DenoisingRequest:
    info = model.info
    spec = GenerationSpec(
        prompt=f"a red circle above a blue square, number {seed}",
        negative_prompt=generator.choice(["", "blurred"]),
        model="",
        width_px=info.default_width_px,
        height_px=info.default_height_px,
        num_inference_steps=steps,
        guidance_scale=generator.choice([3.0, 3.0, 7.5, 1.0]),
        scheduler=generator.choice(info.schedulers),
        seed=seed,
    )
    first_step = generator.choice([0, 0, steps // 10, steps // 2])
    if first_step == 0:
        return DenoisingRequest(spec, NoiseStart())
    shape = model.latent_shape(spec.width_px, spec.height_px)
    latent = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return DenoisingRequest(spec, LatentStart(latent, first_step))


@torch.inference_mode()
def play(model: DiffusionModel, history: Sequence[Joining]) -> list[LatentListener]:
    """Play the history tick by tick, so that the clock has no influence."""
    limits, settings = BatchLimits(MAX_BATCH, None, lambda: 0.0), EngineSettings(max_batch=MAX_BATCH)
    loop = StepLoop(model, Denoiser(model), limits, settings, EngineObserver(), lambda: 0.0)
    listeners = [LatentListener() for _ in history]
    jobs: list[EngineJob] = []
    tick = 0
    while len(jobs) < len(history) or not loop.idle:
        for one, listener in zip(history[len(jobs) :], listeners[len(jobs) :], strict=True):
            if one.comes_at <= tick:
                jobs.append(loop.submit(one.request, listener))
        for one, job in zip(history, jobs, strict=False):
            if one.stopped_at == tick:
                job.stop(STOP)
        loop.tick()
        tick += 1
    return listeners


@torch.inference_mode()
def denoise_alone(model: DiffusionModel, request: DenoisingRequest) -> Tensor:
    run = prepare(model, PromptMemo(model, 2), request)
    while not run.done:
        denoise_step(model, run)
    return run.state.latent


@dataclass(frozen=True)
class Compared:
    """Store one image's largest difference from itself alone, whether both plays gave the same bits, and the lone
    image's difference from float32."""

    dtype: str
    guided: bool
    difference: float
    repeated: bool
    from_float32: float


def compare_all(name: str, directory: Path, options: Options) -> Iterator[Compared]:
    exact = load(directory, "float32")
    for dtype in options.rest["dtypes"]:
        yield from compare(name, load(directory, dtype), exact, dtype, options)


def compare(
    name: str, model: DiffusionModel, exact: DiffusionModel, dtype: str, options: Options
) -> Iterator[Compared]:
    histories = 2 if options.quick else int(options.rest["histories"])
    steps = (4, 6) if options.quick else (10, 20, 30)
    for seed in range(histories):
        history = history_of(model, seed, 6 if options.quick else 16, steps)
        for one, first, second in zip(history, play(model, history), play(model, history), strict=True):
            if first.latent is None or second.latent is None:
                continue
            alone = denoise_alone(model, one.request)
            repeated = torch.equal(first.latent, second.latent)
            from_float32 = 0.0 if dtype == "float32" else distance(alone, denoise_alone(exact, one.request))
            guided = model.info.is_guided(one.request.spec.guidance_scale)
            yield Compared(dtype, guided, distance(first.latent, alone), repeated, from_float32)
        print(f"{name} {dtype}: history {seed} after {time.process_time():.0f} s", flush=True)


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of any element."""
    return (one.float() - other.float()).abs().max().item()


@torch.inference_mode()
def cost_of_holding(model: DiffusionModel, pairs: int) -> list[tuple[float, float]]:
    """Return processor seconds of a full guided batch, with layers restricted and not, alternating."""
    info = model.info
    plain = example_input(model, BatchKey(info.default_width_px, info.default_height_px, guided=True), 2 * MAX_BATCH)
    held = replace(plain, as_alone=AsAlone(2, tuple(range(MAX_BATCH))))

    def seconds(inputs: DenoiserInput) -> float:
        began_at = time.thread_time()
        model.predict(inputs)
        return time.thread_time() - began_at

    seconds(held), seconds(plain)  # the first pass finds the layers
    return [(seconds(held), seconds(plain)) for _ in range(pairs)]


def figures_of(images: Sequence[Compared]) -> list[Figure]:
    exact = [image.difference for image in images if image.dtype == "float32"]
    guided = [image.difference for image in images if image.dtype == "float32" and image.guided]
    changed = sum(not image.repeated for image in images)
    figures = [
        measured("float32: max abs difference from the picture alone", exact, max, TARGET),
        measured("float32, guided: max abs difference from the picture alone", guided, max, informative()),
        counted(
            "pictures that another play of the same history changed",
            changed,
            len(images),
            at_most(0, "pictures"),
        ),
    ]
    for dtype in DTYPES:
        rough = [image for image in images if image.dtype == dtype]
        if not rough or dtype == "float32":
            continue
        for name, values in (
            ("the picture alone", [image.difference for image in rough]),
            ("float32, alone", [image.from_float32 for image in rough]),
        ):
            figures.append(measured(f"{dtype}: max abs difference from {name}", values, max, informative()))
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=["tiny-heavy", "tiny-light"], help="names or directories")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=sorted(DTYPES))
    parser.add_argument("--histories", type=int, default=10, help="histories a model and precision")


def load(directory: Path, dtype: str) -> DiffusionModel:
    return load_model(directory, torch.device("cpu"), DTYPES[dtype])


def main() -> int:
    options = parse_options("batch_invariance", __doc__, add_options)
    torch.set_num_threads(1)
    found = [find_model(name) for name in options.rest["models"]]
    images = [image for model in found for image in compare_all(model.name, model.path, options)]
    figures = figures_of(images)
    for model in found:
        pairs = cost_of_holding(load(model.path, "float32"), 10 if options.quick else 100)
        figures.append(
            measured(
                f"{model.name}, float32: batch of {MAX_BATCH}, held by not held", pairs, paired_ratio, informative()
            )
        )
    return publish(options, figures, notes={"max_batch": MAX_BATCH, "threads": 1})


if __name__ == "__main__":
    raise SystemExit(main())
