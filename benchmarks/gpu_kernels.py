"""Measure the accuracy and the speed of single kernels, at the shapes of served layers (rows of `gpu_rows`)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu_setup import GpuSetup, RowResult, compared, name_of
from lab.runs.measure import at_most, measured
from pentimento.diffusion.kernels import kernels_for, reference
from pentimento.domain.errors import PentimentoError

Operation = Callable[..., Tensor]
# channels and side of the normalised tensors; rows are those of a guided image
NORMS = {
    "SD 1.5, 64 x 64": (320, 64),
    "SDXL, 128 x 128": (320, 128),
    "SDXL's decoder, 128 x 128": (960, 128),
    "an autoencoder, 512 x 512": (128, 512),
}
# tokens and width of a feed-forward layer's input
LAYERS = {"SD 1.5, 64 x 64": (4096, 320), "SDXL, 64 x 64": (4096, 640), "SDXL, 32 x 32": (1024, 1280)}
TINY_NORMS, TINY_LAYERS = {"tiny": (32, 8)}, {"tiny": (64, 16)}
GROUPS, EPSILON = 32, 1e-5


@dataclass(frozen=True)
class KernelCase:
    """Describe one operation on tensors of one shape. `moved_bytes`: each tensor read, and the result written, once."""

    name: str
    operation: str
    arguments: tuple[Tensor, ...]
    rest: tuple[object, ...]
    moved_bytes: int
    options: dict[str, object] = field(default_factory=dict)

    def run(self, kernels: object, *, exact: bool = False) -> Tensor:
        """Return the operation's result; of several results the last."""
        arguments = [one.double() for one in self.arguments] if exact else self.arguments
        results: Tensor | tuple[Tensor, ...] = getattr(kernels, self.operation)(*arguments, *self.rest, **self.options)
        return results if isinstance(results, Tensor) else results[-1]


def cases(setup: GpuSetup, dtype: torch.dtype) -> Iterator[KernelCase]:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=setup.device).to(dtype)

    size = dtype.itemsize
    for name, (channels, side) in (TINY_NORMS if setup.tiny else NORMS).items():
        inputs = random(2, channels, side, side).to(memory_format=torch.channels_last)
        own, bias = 2 * channels * size, random(channels)
        yield KernelCase(
            f"normalisation with SiLU, {name}",
            "group_norm",
            (inputs, random(channels), bias),
            (GROUPS, EPSILON),
            2 * inputs.nbytes + own,
            {"activated": True},
        )
        others = inputs.flip(0).contiguous(memory_format=torch.channels_last)
        yield KernelCase(f"sum with a bias, {name}", "join", (inputs, others, bias), (), 3 * inputs.nbytes + own // 2)
    for name, (tokens, width) in (TINY_LAYERS if setup.tiny else LAYERS).items():
        projected = random(2 * tokens, 8 * width)
        yield KernelCase(f"GEGLU, {name}", "geglu", (projected,), (), projected.nbytes * 3 // 2)
        left, right = random(2 * tokens, width), random(2 * tokens, width)
        yield KernelCase(
            f"sum and layer normalisation, {name}",
            "add_layer_norm",
            (left, right, random(width), random(width)),
            (EPSILON,),
            4 * left.nbytes + 2 * width * size,
        )


def accuracy_row(setup: GpuSetup) -> RowResult:
    """Compare the largest error against float64 with torch's operations' error."""
    result = RowResult()
    for dtype in setup.dtypes():
        for case in cases(setup, dtype):
            name = f"{case.name}, {name_of(dtype)}: largest error / torch's"
            try:
                fused = case.run(kernels_for(setup.device))
            except PentimentoError as error:
                result.not_run[name] = f"{error.reason}: {error.message}"
                continue
            exact = case.run(reference, exact=True)
            ours, theirs = ((one.double() - exact).abs().max().item() for one in (fused, case.run(reference)))
            result.figures.append(measured(name, [ours / max(theirs, 1e-12)], max, at_most(1.05)))
    return result


def speed_row(setup: GpuSetup) -> RowResult:
    """Time fifty calls of torch's operations and of the kernel, and the share that moving the bytes takes."""
    result = RowResult()
    for dtype in setup.dtypes():
        for case in cases(setup, dtype):
            name = f"{case.name}, {name_of(dtype)}"
            ways: dict[str, Callable[[], object]] = {"eager": partial(case.run, reference)}
            try:
                kernels = kernels_for(setup.device)
                ways["fused"] = partial(case.run, kernels)
            except PentimentoError as error:
                result.not_run[f"{name}: fused"] = f"{error.reason}: {error.message}"
            repeats = 2 if setup.tiny else 50
            times = setup.interleaved({way: setup.replayed(act, repeats) for way, act in ways.items()})
            result.figures += compared(name, times, repeats * 1e3 * case.moved_bytes / setup.bytes_a_second)
    return result
