"""Compare the throughput of batches with different LoRAs, outside unpatched weights, with the same batches without
LoRAs.

    python -m benchmarks.lora_batch

Four guided images of tiny-heavy run in one batch through the step engine: each with one LoRA, one of the zoo's three or
the first at another weight; with two LoRAs for the fourth, which makes every row's rank 8 instead of 4; with a LoRA for
one image only; and without any. All alternate in one process on one thread.
"""

from dataclasses import replace
from statistics import median

import torch

from lab.fixtures.diffusers_reference import Case
from lab.fixtures.lora_reference import latents_of_engine, read_set, spec_of_case
from lab.runs.measure import at_least, informative, interleave, measured, parse_options, publish, seconds_of
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.loras import AdapterSet
from pentimento.domain.generation import Scheduler
from zoo.registry import WEIGHTS

Styles = tuple[tuple[tuple[str, float], ...], ...]
FOUR: Styles = ((("neon", 1.0),), (("blueprint", 1.0),), (("mosaic", 1.0),), (("neon", 0.5),))
WITH_A_PAIR: Styles = (*FOUR[:3], (("neon", 0.5), ("mosaic", 0.5)))
ONE: Styles = (FOUR[0], (), (), ())


def sets_of(model: DiffusionModel, images: Styles) -> list[AdapterSet]:
    folders = [[(WEIGHTS / f"tiny-lora-{style}", weight) for style, weight in styles] for styles in images]
    return [read_set(model, [(one / "pytorch_lora_weights.safetensors", weight) for one, weight in f]) for f in folders]


def main() -> int:
    options = parse_options("lora_batch", __doc__)
    torch.set_num_threads(1)
    model = load_model(WEIGHTS / "tiny-heavy", torch.device("cpu"), torch.float32)
    case = Case("a red star at night", "", Scheduler.DDIM, steps=4 if options.quick else 20)
    specs = [replace(spec_of_case(model, case), seed=seed) for seed in range(len(FOUR))]
    four, pair, one = (sets_of(model, styles) for styles in (FOUR, WITH_A_PAIR, ONE))
    none: list[AdapterSet] = [()] * len(specs)
    sides = {"without": none, "four": four, "pair": pair, "one": one}
    acts = {
        name: lambda _, sets=sets: seconds_of(lambda: latents_of_engine(model, specs, sets))
        for name, sets in sides.items()
    }
    interleave(acts, 1)
    seconds = interleave(acts, 2 if options.quick else 15)
    of_four, of_pair, of_one = (
        [plain / own for plain, own in zip(seconds["without"], seconds[name], strict=True)]
        for name in ("four", "pair", "one")
    )
    figures = [
        measured("throughput with four LoRAs / without", of_four, median, at_least(0.8)),
        measured("the same, one of them two LoRAs", of_pair, median, informative()),
        measured("throughput with a LoRA for one of four / without", of_one, median, informative()),
        measured("without", seconds["without"], median, informative("s")),
        measured("with four LoRAs", seconds["four"], median, informative("s")),
    ]
    return publish(options, figures, notes={"steps": case.steps, "threads": 1})


if __name__ == "__main__":
    raise SystemExit(main())
