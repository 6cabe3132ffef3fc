"""Time the LoRAs of the 50 most frequent combinations put into a UNet: ours, and PEFT's load and fuse.

    python -m benchmarks.fused

Combinations and their frequencies are those of the production mix with drift (16,000 requests; MLoRA, sections 5.3 and
6.3). A network of Stable Diffusion 1.5's size with random weights, float32; LoRAs of rank 16 over its attention and
residual convolutions, in files. Both sides play the same draws of combinations, in blocks that alternate. Each draw
starts from the base model's weights and ends with them: a request's overhead is to load, add and remove its LoRAs. Ours
keeps read LoRAs in host memory and a copy of the layers' weights, and restores it; a second row reads the files for
each draw. PEFT loads the files, fuses, and unfuses. MLoRA computes the 50 fused models ahead, which saves
91.7 % of the overhead.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.lora_patch import ENDS, RANK, network, timed
from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from lab.runs.measure import Figure, Options, at_least, informative, measured, parse_options, publish
from lab.workloads.production import MLORA_DRIFTING, choose
from pentimento.diffusion.loras import BaseLayers, WeightedLora, layers_of, read_lora
from pentimento.diffusion.loras.patching import WeightPatch

REQUESTS, MOST_FREQUENT = 16_000, 50
BLOCK, BLOCKS = 6, 4
# LoRAs share files: the time depends on the shapes alone. No combination has more.
FILES = 6


@dataclass(frozen=True)
class Overheads:
    """Store the seconds of one draw: ours with LoRAs in memory, ours with reading, PEFT's."""

    ours_s: float
    read_s: float
    peft_s: float


def frequent_combinations() -> list[tuple[int, int]]:
    """Return the number of LoRAs and the uses of the most frequent combinations of a base model with LoRAs."""
    choices = choose(MLORA_DRIFTING, REQUESTS, np.random.default_rng(1))
    uses = Counter((one.model, one.loras) for one in choices if one.loras)
    return [(len(loras), count) for (_, loras), count in uses.most_common(MOST_FREQUENT)]


def draws(count: int) -> list[tuple[int, ...]]:
    """Return the files of that many requests, by the frequency of their combinations."""
    combinations = frequent_combinations()
    weights = np.array([uses for _, uses in combinations], np.float64)
    chosen = np.random.default_rng(2).choice(len(combinations), size=count, p=weights / weights.sum())
    return [tuple((int(one) + place) % FILES for place in range(combinations[one][0])) for one in chosen]


class InPlaceLoras:
    """Add LoRAs in place and restore the weights."""

    def __init__(self, unet: Any, base: BaseLayers, files: Sequence[Path]) -> None:
        self._patch = WeightPatch(unet, "unet")
        self._base = base
        self._files = files
        self._read = [self._lora(number) for number in range(len(files))]
        # A worker has copied the weights of the layers once.
        self.resident((0,))

    def resident(self, loras: Sequence[int]) -> None:
        self._patch.hold(tuple(self._read[one] for one in loras))
        self._patch.hold(())

    def with_reading(self, loras: Sequence[int]) -> None:
        self._patch.hold(tuple(self._lora(one) for one in loras))
        self._patch.hold(())

    def _lora(self, number: int) -> WeightedLora:
        return WeightedLora(read_lora(self._files[number], self._base, torch.float32))


def load_and_fuse(unet: Any, files: Sequence[Path], loras: Sequence[int]) -> None:
    names = [f"lora{place}" for place in range(len(loras))]
    for name, number in zip(names, loras, strict=True):
        unet.load_lora_adapter(load_file(files[number]), adapter_name=name, prefix="unet")
    unet.set_adapters(names)
    unet.fuse_lora()
    unet.unfuse_lora()
    unet.unload_lora()


def block_of(block: Sequence[Sequence[int]], side: Callable[[Sequence[int]], None]) -> list[float]:
    return [timed(lambda loras=loras: side(loras)) for loras in block]  # type: ignore[misc]


def measure(options: Options, folder: Path) -> list[Overheads]:
    unet = network(options.quick)
    base = layers_of("stable_diffusion", {"unet": unet})
    files = []
    for number in range(FILES):
        (place := folder / str(number)).mkdir()
        files.append(write_diffusers_lora(place, random_factors(base, rank=RANK, seed=number, ends=ENDS), alpha=8.0))
    ours = InPlaceLoras(unet, base, files)
    size, count = (1, 1) if options.quick else (BLOCK, BLOCKS)
    chosen, found = draws(size * count), []
    for start in range(0, len(chosen), size):
        block = chosen[start : start + size]
        sides = (ours.resident, ours.with_reading, lambda loras: load_and_fuse(unet, files, loras))
        found += [Overheads(*seconds) for seconds in zip(*(block_of(block, side) for side in sides), strict=True)]
    return found


def saved(ours: Callable[[Overheads], float]) -> Callable[[Sequence[Overheads]], float]:
    return lambda found: 1.0 - fmean(map(ours, found)) / fmean(one.peft_s for one in found)


def figures_of(found: Sequence[Overheads]) -> list[Figure]:
    return [
        measured("overhead saved, LoRAs in memory", found, saved(lambda one: one.ours_s), at_least(0.92)),
        measured("overhead saved, LoRAs read", found, saved(lambda one: one.read_s), informative()),
        measured("ours, LoRAs in memory", [one.ours_s for one in found], fmean, informative("s")),
        measured("ours, LoRAs read", [one.read_s for one in found], fmean, informative("s")),
        measured("PEFT's load and fuse", [one.peft_s for one in found], fmean, informative("s")),
    ]


def main() -> int:
    options = parse_options("fused", __doc__)
    torch.set_num_threads(1)
    combinations = frequent_combinations()
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        found = measure(options, Path(folder))
    count = sum(uses for _, uses in combinations)
    mean = sum(loras * uses for loras, uses in combinations) / count
    return publish(options, figures_of(found), notes={"loras_each": mean, "uses": count, "threads": 1})


if __name__ == "__main__":
    raise SystemExit(main())
