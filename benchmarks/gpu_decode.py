"""Time decoding of one latent by a full-size autoencoder of random weights, as a worker does and as diffusers does
(rows of `gpu_rows`).
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.gpu_checkpoints import autoencoder
from benchmarks.gpu_networks import SIZES
from benchmarks.gpu_setup import GpuSetup, RowResult, name_of, reason_of
from lab.runs.measure import at_most, informative, measured
from pentimento.diffusion.families.autoencoder import Autoencoder, LatentScale
from pentimento.diffusion.kernels import fuse, kernels_for
from pentimento.domain.errors import PentimentoError

PEER, COMPILED_PEER, OURS = "diffusers", "diffusers, compiled with graphs", "as served"


def decode_row(setup: GpuSetup, network: str) -> RowResult:
    """Return milliseconds of one image."""
    result, size, dtype = RowResult(), SIZES[network, setup.tiny], setup.dtypes()[0]
    torch.manual_seed(0)
    with setup.device:
        module = autoencoder(size, whole=not setup.tiny).to(dtype).eval().requires_grad_(False)
    latent = torch.randn(1, 4, size.side_px // 8, size.side_px // 8).to(setup.device, dtype)
    name = f"{size.name}, {size.side_px} x {size.side_px} decoded, {name_of(dtype)}"
    ways: dict[str, Callable[[], Tensor]] = {PEER: lambda: module.decode(latent, return_dict=False)[0]}
    others: dict[str, Callable[[], Callable[[], Tensor]]] = {
        OURS: lambda: _ours(setup, deepcopy(module), latent, dtype),
        COMPILED_PEER: lambda: _compiled(setup, deepcopy(module), latent),
    }
    for way, make in others.items():
        try:
            ways[way] = make()
        except (PentimentoError, RuntimeError) as error:
            result.not_run[f"{name}: {way}"] = reason_of(error)
    exact = ways[PEER]().float()
    times = setup.interleaved(ways)
    for peer, target in ((COMPILED_PEER, at_most(1.0, "x")), (PEER, at_most(0.5, "x"))):
        if {peer, OURS} <= ways.keys():
            ratios = [ours / theirs for ours, theirs in zip(times[OURS], times[peer], strict=True)]
            result.figures.append(measured(f"{name}: {OURS} / {peer}", ratios, median, target))
    result.figures += [measured(f"{name}: {way}", taken, median, informative("ms")) for way, taken in times.items()]
    for way in ways.keys() - {PEER}:
        distance = float((ways[way]().float() - exact).norm() / exact.norm())
        result.figures.append(measured(f"{name}: {way}: distance from diffusers'", [distance], max, informative()))
    return result


def _ours(setup: GpuSetup, module: Any, latent: Tensor, dtype: torch.dtype) -> Callable[[], Tensor]:
    """Return the worker's decoding. Raises FailedPrecondition if the device has no kernels."""
    kernels = kernels_for(setup.device)
    served = Autoencoder(module, LatentScale(1.0), setup.device, dtype)
    fuse(served.decoder, kernels)
    served.decode(latent)
    return partial(served.decode, latent)


def _compiled(setup: GpuSetup, module: Any, latent: Tensor) -> Callable[[], Tensor]:
    """Return diffusers' decoding with all optimisations that it recommends."""
    setup.check_graphs()
    module.to(memory_format=torch.channels_last)
    decode: Any = torch.compile(module.decode, mode="reduce-overhead", fullgraph=True, dynamic=False)
    for _ in range(3):
        decode(latent, return_dict=False)
    return lambda: cast("Tensor", decode(latent, return_dict=False)[0])
