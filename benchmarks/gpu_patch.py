"""Time one LoRA put into a UNet's weights on the device: our in-place patch, and PEFT's load and fuse, alternating
(rows of `gpu_rows`; Katz, section 6: 2 s and 0.09 s).
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file

from benchmarks.gpu_networks import SIZES
from benchmarks.gpu_setup import GpuSetup, RowResult, name_of
from benchmarks.lora_patch import ENDS, RANK, figures_of, one_round
from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from pentimento.diffusion.kernels import fuse, kernels_for
from pentimento.diffusion.loras import WeightedLora, layers_of, read_lora
from pentimento.diffusion.loras.patching import WeightPatch
from pentimento.domain.errors import PentimentoError

ROUNDS, CYCLES = 7, 20


def patch_row(setup: GpuSetup, network: str) -> RowResult:
    """Patch attention and residual convolutions, rank 16, with weights in the kernels' layout."""
    size, dtype = SIZES[network, setup.tiny], setup.dtypes()[0]
    with setup.device:
        unet = UNet2DConditionModel(**size.config)
    unet.to(dtype).eval().requires_grad_(False)
    try:
        kernels = kernels_for(setup.device)
        fuse(unet, kernels)
    except PentimentoError:
        pass  # the weights keep diffusers' layout
    family = "stable_diffusion_xl" if size.pooled_width else "stable_diffusion"
    base = layers_of(family, {"unet": unet})
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        file = write_diffusers_lora(Path(folder), random_factors(base, rank=RANK, ends=ENDS), alpha=8.0)
        lora, theirs = read_lora(file, base, dtype), load_file(file)
    patch, ours = WeightPatch(unet, "unet"), WeightedLora(lora)
    before = {name: value.clone() for name, value in unet.state_dict().items()}
    for _ in range(2 if setup.tiny else CYCLES):
        patch.hold((ours,))
        saved_bytes = patch.saved_bytes
        patch.hold(())
    same_bits = all(torch.equal(before[name], value) for name, value in unet.state_dict().items())
    touched = sum(unet.get_submodule(name).weight.nbytes for name in lora.components["unet"])
    # The first round is dropped: it is PEFT's first, too.
    rounds = [one_round(unet, patch, ours, theirs) for _ in range(1 + (2 if setup.tiny else ROUNDS))][1:]
    figures = figures_of(rounds, same_bits, saved_bytes / touched)
    name = f"{size.name}, a LoRA of {lora.size_bytes / 2**20:.0f} MiB, {name_of(dtype)}"
    return RowResult([replace(figure, name=f"{name}: {figure.name}") for figure in figures])
