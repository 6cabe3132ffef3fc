"""Time a LoRA put into the weights of a UNet: our in-place patch, and PEFT's layers loaded and fused.

    python -m benchmarks.lora_patch

One network of Stable Diffusion 1.5's size with random weights, float32, and a LoRA of rank 16 over its attention and
residual convolutions. Both sides start from tensors in memory and alternate on the same network; reading the file is
timed separately. Ours is then restored repeatedly, and the digest of all weights is compared at the end. Layers patched
before have copies of their weights; the first patch, which makes the copies, is a separate row. Katz (section 6): 2 s
with PEFT for a LoRA of 341 MiB, 0.09 s patched in place.
"""

import argparse
import gc
import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file
from torch import nn

from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from lab.runs.measure import Figure, Options, at_least, at_most, informative, measured, parse_options, publish
from pentimento.diffusion.loras import WeightedLora, layers_of, read_lora
from pentimento.diffusion.loras.patching import WeightPatch

ENDS = ("to_q", "to_k", "to_v", "to_out.0", "conv1", "conv2")
RANK = 16
FULL = {"block_out_channels": (320, 640, 1280, 1280), "cross_attention_dim": 768, "attention_head_dim": 8}
SMALL = {"block_out_channels": (32, 64), "cross_attention_dim": 32, "attention_head_dim": 4}
SMALL_BLOCKS = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}


@dataclass(frozen=True)
class PatchTimes:
    """Store seconds of one round: our patch of layers patched before, and of others, our restoring, and PEFT's load and
    fuse."""

    patch_s: float
    first_patch_s: float
    restore_s: float
    peft_s: float


def network(quick: bool) -> Any:
    torch.manual_seed(0)
    return UNet2DConditionModel(**({**SMALL, **SMALL_BLOCKS} if quick else FULL)).eval().requires_grad_(False)


def digest(unet: nn.Module) -> str:
    found = hashlib.sha256()
    for value in unet.state_dict().values():
        found.update(memoryview(value.numpy()).cast("B"))
    return found.hexdigest()


def timed(act: Callable[[], object]) -> float:
    gc.collect()
    _synchronise()
    began_at = time.perf_counter()
    act()
    _synchronise()
    return time.perf_counter() - began_at


def _synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def one_round(unet: Any, patch: WeightPatch, ours: WeightedLora, theirs: dict[str, torch.Tensor]) -> PatchTimes:
    patch_s = timed(lambda: patch.hold((ours,)))
    restore_s = timed(lambda: patch.hold(()))
    # Its original weights are copied first, as at the first LoRA after a worker's start.
    fresh = WeightPatch(unet, "unet")
    first_patch_s = timed(lambda: fresh.hold((ours,)))
    fresh.hold(())

    def load_and_fuse() -> None:
        unet.load_lora_adapter(dict(theirs), adapter_name="it", prefix="unet")
        unet.fuse_lora()

    peft_s = timed(load_and_fuse)
    unet.unfuse_lora()
    unet.unload_lora()
    return PatchTimes(patch_s, first_patch_s, restore_s, peft_s)


def figures_of(rounds: Sequence[PatchTimes], same_bits: bool, saved_share: float) -> list[Figure]:
    ratios = [one.peft_s / one.patch_s for one in rounds]
    firsts = [one.peft_s / one.first_patch_s for one in rounds]
    return [
        measured("PEFT's load and fuse / our patch", ratios, median, at_least(10)),
        measured("weights differ after the cycles", [float(not same_bits)], max, at_most(0)),
        measured("kept bytes / bytes of the touched layers", [saved_share], max, at_most(1)),
        measured("PEFT's load and fuse / our first patch", firsts, median, informative()),
        measured("first patch", [one.first_patch_s for one in rounds], median, informative("s")),
        measured("patch", [one.patch_s for one in rounds], median, informative("s")),
        measured("restore", [one.restore_s for one in rounds], median, informative("s")),
        measured("PEFT's load and fuse", [one.peft_s for one in rounds], median, informative("s")),
    ]


def add_cycles(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cycles", type=int, default=1000, help="patches and restorings before weights are compared")


def main() -> int:
    options: Options = parse_options("lora_patch", __doc__, add_cycles)
    torch.set_num_threads(1)
    unet = network(options.quick)
    base = layers_of("stable_diffusion", {"unet": unet})
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        file = write_diffusers_lora(Path(folder), random_factors(base, rank=RANK, ends=ENDS), alpha=8.0)
        began_at = time.perf_counter()
        lora = read_lora(file, base, torch.float32)
        read_s = time.perf_counter() - began_at
        theirs = load_file(file)
    patch, ours = WeightPatch(unet, "unet"), WeightedLora(lora)
    before = digest(unet)
    cycles = 10 if options.quick else options.rest["cycles"]
    for _ in range(cycles):
        patch.hold((ours,))
        saved_bytes = patch.saved_bytes
        patch.hold(())
    same_bits = digest(unet) == before
    touched = sum(unet.get_submodule(name).weight.nbytes for name in lora.components["unet"])
    rounds = [one_round(unet, patch, ours, theirs) for _ in range(2 if options.quick else 7)]
    notes = {"lora_bytes": lora.size_bytes, "read_s": read_s, "touched_bytes": touched, "threads": 1, "cycles": cycles}
    return publish(options, figures_of(rounds, same_bits, saved_bytes / touched), notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
