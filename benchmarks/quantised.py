"""Measure weights in eight bits: memory, step time, and the attributes that images keep.

    python -m benchmarks.quantised --scorer SCORERS [--prompts 128]

For two models of the zoo (a UNet, a transformer) and each storage (`int8`, `fp8`), against weights in full precision:

- bytes of denoiser and text encoders ÷ the same in float16 and in float32. The zoo's layers are narrow, so that scales
  weigh more than in real models: Stable Diffusion 1.5's UNet has another row;
- seconds of a guided step, batches of one and of eight, alternately, ÷ in full precision (float32: a CPU is no place
  for float16);
- attributes of held-out prompts that the zoo's attribute scorer sees (`benchmarks.image_scorers`), equal seeds, ÷ in
  full precision. Control: three bits for each weight, which must lose attributes.

Not shown: GPUs, where a step reads half the bytes; models with another sensitivity.
"""

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from benchmarks.image_scorers import AttributeScorer
from lab.fixtures.full_size import full_size_unet
from lab.runs.intervals import paired_ratio, ratio_of_sums
from lab.runs.measure import (
    Figure,
    at_least,
    at_most,
    informative,
    interleave,
    measured,
    parse_options,
    publish,
    seconds_of,
)
from pentimento.devices.choices import WeightStorage
from pentimento.diffusion.denoising import NoiseStart
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.diffusion.packed_weights import pack
from pentimento.diffusion.weight_memory import weight_bytes
from pentimento.diffusion.weights import quiet_loaders
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.settings import StudyRunSettings
from zoo.drawing.prompts import Prompts, examination_prompts
from zoo.registry import WEIGHTS

MODELS = ("tiny-heavy", "tiny-flow")
FULL = WeightStorage.FULL
PACKED = (WeightStorage.INT8, WeightStorage.FP8)
BATCH = 16
BATCHES = (1, 8)
FIRST_PROMPT = 5000
# Steps on each side of zero: three bits.
CONTROL_STEPS = 3
FULL_SIZE = "Stable Diffusion 1.5's UNet"
MEMORY, KEPT = at_most(0.55), at_least(0.98)


def main() -> int:
    options = parse_options("quantised", __doc__, add_options)
    count = BATCH if options.quick else options.rest["prompts"]
    rounds = 3 if options.quick else options.rest["rounds"]
    torch.set_num_threads(1)
    quiet_loaders()
    prompts = examination_prompts(count, FIRST_PROMPT)
    scorer = AttributeScorer(options.rest["scorer"], prompts.asked.tolist())
    figures = list(full_size_memory())
    for name in MODELS:
        models = {storage: loaded(name, storage) for storage in (FULL, *PACKED)}
        figures += [*memory(name, models), *step_times(name, models, rounds)]
        figures += attributes(name, models, prompts, scorer)
    figures.sort(key=lambda figure: figure.target.limit is None)
    return publish(options, figures, notes={"prompts": count, "rounds": rounds, "threads": 1})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scorer", type=Path, required=True, help="work folder of the attribute scorer")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=40, help="steps of each side")


def loaded(name: str, storage: WeightStorage) -> StudyModel:
    """Return a model of the zoo, with its weights stored so."""
    return study_model(WEIGHTS / name, StudyRunSettings(max_batch=BATCH, weights=storage))


def full_size_memory() -> Iterator[Figure]:
    """Yield the bytes of a network of real size ÷ those in float16."""
    for storage in PACKED:
        with torch.device("meta"):
            network = full_size_unet().half()
        before = weight_bytes(network)
        pack(network, storage)
        yield Figure(f"{FULL_SIZE}, {storage.value}: bytes ÷ float16", weight_bytes(network) / before, MEMORY)


def network_bytes(model: DiffusionModel) -> int:
    """Return the bytes of denoiser and text encoders."""
    return sum(weight_bytes(network) for network in model.adaptable.values())


def memory(name: str, models: Mapping[WeightStorage, StudyModel]) -> Iterator[Figure]:
    """Yield the bytes of the networks that are packed ÷ those in float32, and in float16."""
    full = network_bytes(models[FULL].generator.model)
    for storage in PACKED:
        packed = network_bytes(models[storage].generator.model)
        yield Figure(f"{name}, {storage.value}: bytes ÷ float32", packed / full, MEMORY)
        yield Figure(f"{name}, {storage.value}: bytes ÷ float16", packed / (full / 2), informative())


@torch.inference_mode()
def step_times(name: str, models: Mapping[WeightStorage, StudyModel], rounds: int) -> Iterator[Figure]:
    """Yield the seconds of a guided step ÷ those in full precision, by batch."""
    for batch in BATCHES:
        steps = {}
        for storage, one in models.items():
            model, key = one.generator.model, BatchKey(one.spec.width_px, one.spec.height_px, guided=True)
            step = partial(model.predict, example_input(model, key, 2 * batch))
            step()
            steps[storage] = lambda number, step=step: seconds_of(step)
        seconds = interleave(steps, rounds)
        for storage in PACKED:
            pairs = list(zip(seconds[storage], seconds[FULL], strict=True))
            what = f"{name}, {storage.value}, batch of {batch}: seconds of a step ÷ float32"
            yield measured(what, pairs, paired_ratio, informative())


def attributes(
    name: str, models: Mapping[WeightStorage, StudyModel], prompts: Prompts, scorer: AttributeScorer
) -> Iterator[Figure]:
    """Yield the attributes that the scorer sees ÷ those in full precision, and the control's."""
    seen = {storage.value: seen_in(model, prompts, scorer) for storage, model in models.items()}
    control = loaded(name, FULL)
    round_to_three_bits(control.generator.model.denoiser)
    seen["three bits (control)"] = seen_in(control, prompts, scorer)
    for what, found in seen.items():
        yield measured(f"{name}, {what}: attributes seen", found, fmean, informative())
        if what != FULL.value:
            pairs = list(zip(found, seen[FULL.value], strict=True))
            target = KEPT if what in {storage.value for storage in PACKED} else at_most(0.95)
            yield measured(f"{name}, {what}: attributes seen ÷ float32", pairs, ratio_of_sums, target)


def seen_in(model: StudyModel, prompts: Prompts, scorer: AttributeScorer) -> list[float]:
    """Return the share of requested attributes in each prompt's image."""
    requests = [
        model.request(prompt, FIRST_PROMPT + number, NoiseStart()) for number, prompt in enumerate(prompts.captions)
    ]
    images = [one.png for one in model.generator.generate(requests)]
    return scorer.qualities(images, range(len(images)))


@torch.no_grad()
def round_to_three_bits(network: nn.Module) -> None:
    """Round the weights of linear layers and convolutions, with a scale for each output channel."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            weight = layer.weight
            scales = weight.abs().flatten(1).amax(1).reshape(-1, *[1] * (weight.dim() - 1)) / CONTROL_STEPS
            weight.copy_((weight / scales.clamp(min=1e-12)).round() * scales)


if __name__ == "__main__":
    raise SystemExit(main())
