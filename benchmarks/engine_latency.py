"""Compare one request's latency in our engine with diffusers' pipelines, compiled with compiled and eager with eager,
from the prompt to the final latent.

All sides run in this process with one torch thread. diffusers' pipelines run in inference mode, as ours does, and the
compiled one uses the same `torch.compile` settings. Each round requests the same image from every side, in a drawn
order; prompts never repeat, so that no cache helps. Ours is the engine as the worker runs it: submitted from another
thread, answered by a listener. The latents of a round must agree within 1e-3, or the benchmark fails.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lab.fixtures.latent_listener import generated_together
from lab.runs.intervals import ratio_of_medians
from lab.runs.measure import Figure, Options, at_most, drawn_orders, informative, measured, parse_options, publish
from pentimento.devices.choices import CompileMode
from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart
from pentimento.diffusion.engine import CompiledDenoiser, Denoiser, EngineSettings, StepEngine
from pentimento.diffusion.families import BatchKey, DiffusionModel, load_model
from pentimento.domain.generation import GenerationSpec
from pentimento.supervisor.models import find_model

GUIDANCE_SCALE = 3.0
WARM_UP_ROUNDS = 2
TOLERANCE = 1e-3

Side = Callable[[str, int], Tensor]


def engine_side(model: DiffusionModel, denoiser: Denoiser, steps: int) -> tuple[Side, StepEngine]:
    engine = StepEngine(model, EngineSettings(), denoiser=denoiser)
    engine.start()
    info = model.info

    def generate(prompt: str, seed: int) -> Tensor:
        size = (info.default_width_px, info.default_height_px)
        spec = GenerationSpec(prompt, "", "", *size, steps, GUIDANCE_SCALE, info.schedulers[0], seed)
        return generated_together(engine, [DenoisingRequest(spec, NoiseStart())])[0]

    return generate, engine


def compiled_denoiser(model: DiffusionModel, engine: StepEngine, denoiser: CompiledDenoiser) -> None:
    """Compile for one guided image of the model's size, on the engine's thread."""
    info = model.info
    key = BatchKey(info.default_width_px, info.default_height_px, guided=True)
    engine.call(lambda: denoiser.warm(key, (1,))).result()


def diffusers_side(model: Path, steps: int, *, compiled: bool) -> Side:
    from diffusers import DiffusionPipeline
    from diffusers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    pipeline = DiffusionPipeline.from_pretrained(model, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    if compiled:
        denoiser = "unet" if hasattr(pipeline, "unet") else "transformer"
        setattr(pipeline, denoiser, torch.compile(getattr(pipeline, denoiser), dynamic=False))

    @torch.inference_mode()
    def generate(prompt: str, seed: int) -> Tensor:
        latents: Tensor = pipeline(
            prompt,
            num_inference_steps=steps,
            guidance_scale=GUIDANCE_SCALE,
            generator=torch.Generator().manual_seed(seed),
            output_type="latent",
        ).images
        return latents

    return generate


def run_round(sides: dict[str, Side], number: int) -> dict[str, float]:
    """Return milliseconds by side."""
    latents: dict[str, Tensor] = {}

    def milliseconds(name: str) -> float:
        began = time.perf_counter()
        latents[name] = sides[name](f"a red circle, number {number}", 1000 + number)
        return (time.perf_counter() - began) * 1e3

    (order,) = drawn_orders(sides, 1, seed=number)
    found = {name: milliseconds(name) for name in order}
    for name, latent in latents.items():
        difference = (latent - latents["diffusers eager"]).abs().max().item()
        if not difference <= TOLERANCE:
            raise RuntimeError(f"{name} is {difference:g} away from diffusers: not the same image")
    return found


def figures_of(rounds: Sequence[dict[str, float]]) -> list[Figure]:
    figures = []
    for mode, limit in (("compiled", 0.95), ("eager", 0.88)):
        if mode in rounds[0]:
            pairs = [(one[mode], one[f"diffusers {mode}"]) for one in rounds]
            figures.append(measured(f"{mode} / diffusers {mode}", pairs, ratio_of_medians, at_most(limit, "x")))
    for name in rounds[0]:
        figures.append(measured(name, [one[name] for one in rounds], statistics.median, informative("ms")))
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="tiny-heavy", help="registry name or diffusers directory")
    parser.add_argument("--rounds", type=int, default=40, help="rounds that are measured")
    parser.add_argument("--steps", type=int, default=50, help="denoising steps of an image")
    parser.add_argument("--no-compile", action="store_true", help="skip the compiled side")


def sides_of(options: Options, directory: Path) -> dict[str, Side]:
    model = load_model(directory, torch.device("cpu"), torch.float32)
    steps = options.rest["steps"]
    eager, _ = engine_side(model, Denoiser(model), steps)
    sides = {"diffusers eager": diffusers_side(directory, steps, compiled=False), "eager": eager}
    if not options.rest["no_compile"]:
        denoiser = CompiledDenoiser(model, CompileMode.COMPILE)
        sides["compiled"], engine = engine_side(model, denoiser, steps)
        compiled_denoiser(model, engine, denoiser)
        sides["diffusers compiled"] = diffusers_side(directory, steps, compiled=True)
    return sides


def main() -> int:
    options = parse_options("engine_latency", __doc__, add_options)
    torch.set_num_threads(1)
    sides = sides_of(options, find_model(options.rest["model"]).path)
    for number in range(WARM_UP_ROUNDS):
        run_round(sides, number)
    count = 3 if options.quick else options.rest["rounds"]
    rounds = [run_round(sides, WARM_UP_ROUNDS + number) for number in range(count)]
    notes = {name: options.rest[name] for name in ("model", "steps")}
    notes |= {"guidance_scale": GUIDANCE_SCALE, "torch_threads": 1, "warm_up_rounds": WARM_UP_ROUNDS}
    return publish(options, figures_of(rounds), notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
