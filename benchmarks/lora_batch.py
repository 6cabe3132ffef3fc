"""Throughput of batches whose pictures have different LoRAs, beside unpatched weights, and of the same batches without.

    python -m benchmarks.lora_batch

Four guided pictures of tiny-heavy in one batch through the step engine, each with one of the zoo's three LoRAs or two
of them; and the same four without. Both sides take turns in one process on one thread.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch

from benchmarks.report import at_least, informative, measured, parse_options, publish
from pentimento.diffusion.families import load_model
from pentimento.diffusion.loras import AdapterSet
from pentimento.domain.generation import GenerationSpec, Scheduler
from pentimento.testing.diffusers_reference import Case
from pentimento.testing.lora_reference import latents_of_engine, read_set, spec_of_case
from zoo.registry import WEIGHTS

STYLES = (("neon",), ("blueprint",), ("mosaic",), ("neon", "mosaic"))


def seconds_of(model: object, specs: Sequence[GenerationSpec], sets: Sequence[AdapterSet]) -> float:
    began_at = time.perf_counter()
    latents_of_engine(model, specs, sets)  # type: ignore[arg-type]
    return time.perf_counter() - began_at


def main() -> int:
    options = parse_options("lora_batch", __doc__)
    torch.set_num_threads(1)
    model = load_model(WEIGHTS / "tiny-heavy", torch.device("cpu"), torch.float32)
    case = Case("a red star at night", "", Scheduler.DDIM, steps=4 if options.quick else 20)
    specs = [replace(spec_of_case(model, case), seed=seed) for seed in range(len(STYLES))]
    files = {style: WEIGHTS / f"tiny-lora-{style}" / "pytorch_lora_weights.safetensors" for style in sum(STYLES, ())}
    sets = [read_set(model, [(files[style], 1.0) for style in styles]) for styles in STYLES]
    none: list[AdapterSet] = [()] * len(specs)
    seconds_of(model, specs, sets), seconds_of(model, specs, none)  # not counted
    rounds = [
        (seconds_of(model, specs, none), seconds_of(model, specs, sets)) for _ in range(2 if options.quick else 15)
    ]
    figures = [
        measured(
            "throughput with four sets of LoRAs / without",
            [plain / mixed for plain, mixed in rounds],
            median,
            at_least(0.8),
        ),
        measured("without", [plain for plain, _ in rounds], median, informative("s")),
        measured("with four sets of LoRAs", [mixed for _, mixed in rounds], median, informative("s")),
    ]
    return publish(options, figures, notes={"styles": STYLES, "steps": case.steps, "threads": 1})


if __name__ == "__main__":
    raise SystemExit(main())
