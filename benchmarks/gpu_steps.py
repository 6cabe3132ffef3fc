"""Rows of `gpu_rows` that take a guided step of a UNet: eager, with fused kernels, captured, compiled, in halves,
beside a ControlNet, and on two devices."""

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_networks import SIZES, RandomControlNet, RandomUNet
from benchmarks.gpu_setup import GpuSetup, RowResult, compared, name_of
from benchmarks.report import informative, measured
from pentimento.diffusion.engine import CompiledDenoiser, CompileMode, cuda_recorder, replaying
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families.model import BatchKey, DenoiserInput
from pentimento.diffusion.kernels import KernelMode, fuse, kernels_for
from pentimento.domain.errors import PentimentoError

Step = Callable[[], object]


def _made(setup: GpuSetup, network: str, dtype: torch.dtype) -> tuple[RandomUNet, BatchKey, DenoiserInput]:
    size = SIZES[network, setup.tiny]
    key = BatchKey(size.side_px, size.side_px, guided=True)
    model: Any = RandomUNet(size, setup.device, dtype)
    return model, key, example_input(model, key, 2)


def _floor_ms(setup: GpuSetup, model: RandomUNet, inputs: DenoiserInput) -> float:
    """What no way avoids: every weight read once, or every multiplication done, whichever takes longer."""
    with FlopCounterMode(display=False) as counter:
        model.predict(inputs)
    read_s = model.weight_bytes / setup.bytes_a_second
    return 1e3 * max(read_s, counter.get_total_flops() / setup.operations_a_second(model.dtype))


def _captured(model: Any, key: BatchKey) -> CompiledDenoiser:
    denoiser = CompiledDenoiser(model, CompileMode.CAPTURE, replaying(cuda_recorder(model.device)), halves=True)
    denoiser.warm(key, (1,))
    return denoiser


def _way(model: RandomUNet, key: BatchKey, inputs: DenoiserInput, mode: KernelMode, *, captured: bool) -> Step:
    """Raises FailedPrecondition where the device cannot."""
    kernels = kernels_for(mode, model.device)
    network = model if kernels is None else model.twin()
    if kernels is not None:
        fuse(network.denoiser, kernels)
    runner = _captured(network, key) if captured else network
    runner.predict(inputs)
    return lambda: runner.predict(inputs)


WAYS = {
    "eager": (KernelMode.OFF, False),
    "fused kernels": (KernelMode.FUSED, False),
    "captured": (KernelMode.OFF, True),
    "captured with fused kernels": (KernelMode.FUSED, True),
}


def step_row(setup: GpuSetup, network: str) -> RowResult:
    """A step of one guided picture, by every way that needs no compiler."""
    result = RowResult()
    for dtype in setup.dtypes():
        model, key, inputs = _made(setup, network, dtype)
        name = f"{model.size.name} step, {name_of(dtype)}"
        steps: dict[str, Step] = {}
        for way, (mode, captured) in WAYS.items():
            try:
                steps[way] = _way(model, key, inputs, mode, captured=captured)
            except (PentimentoError, RuntimeError) as error:
                result.not_run[f"{name}: {way}"] = _reason(error)
        result.figures += compared(name, setup.interleaved(steps), _floor_ms(setup, model, inputs))
        del steps, model
        gc.collect()
    return result


def compile_row(setup: GpuSetup, network: str) -> RowResult:
    """The same step under torch.compile, without and with its own CUDA graphs."""
    result = RowResult()
    dtype = setup.dtypes()[0]
    model, key, inputs = _made(setup, network, dtype)
    name = f"{model.size.name} step, {name_of(dtype)}"
    steps: dict[str, Step] = {"eager": lambda: model.predict(inputs)}
    for way, mode in {"compiled": CompileMode.COMPILE, "compiled, with graphs": CompileMode.GRAPHS}.items():
        if mode is CompileMode.GRAPHS and setup.device.type != "cuda":
            result.not_run[f"{name}: {way}"] = "NO_CUDA: CUDA graphs need a CUDA device"
            continue
        unserved: Any = model
        denoiser = CompiledDenoiser(unserved, mode)
        denoiser.warm(key, (1,))
        steps[way] = partial(denoiser.predict, inputs)
    times = setup.interleaved(steps)
    result.figures += compared(f"{name}, again", times, _floor_ms(setup, model, inputs))
    return result


def seam_row(setup: GpuSetup, network: str) -> RowResult:
    """What the seam costs: the whole pass against its two halves, eager and captured."""
    result = RowResult()
    dtype = setup.dtypes()[0]
    model, key, inputs = _made(setup, network, dtype)
    residuals = model.example_residuals(model.encode(inputs))
    controlled = replace(inputs, residuals=residuals)
    name = f"{model.size.name} seam, {name_of(dtype)}"
    ways: dict[str, Step] = {
        "whole": lambda: model.predict(inputs),
        "two halves": lambda: model.decode(controlled, model.encode(inputs)),
    }
    try:
        denoiser = _captured(model, key)
        ways["whole, captured"] = lambda: denoiser.predict(inputs)
        ways["two halves, captured"] = lambda: denoiser.decode(controlled, denoiser.encode(inputs))
    except PentimentoError as error:
        result.not_run[f"{name}: captured"] = _reason(error)
    result.figures += compared(name, setup.interleaved(ways), _floor_ms(setup, model, inputs), informative("x"))
    return result


def overlap_row(setup: GpuSetup, network: str) -> RowResult:
    """A ControlNet on a stream of its own beside the encoder (Katz, section 5), on one device: the ideal is
    max(C, E) + D."""
    result = RowResult()
    dtype = setup.dtypes()[0]
    model, _, inputs = _made(setup, network, dtype)
    controlnet = RandomControlNet(model)
    encoding, residuals = model.encode(inputs), controlnet.residuals(inputs)
    name = f"{model.size.name} with a ControlNet, {name_of(dtype)}"

    def decode(given: Any, encoded: Any) -> object:
        return model.decode(replace(inputs, residuals=given), encoded)

    ways: dict[str, Step] = {
        "one after the other": lambda: decode(controlnet.residuals(inputs), model.encode(inputs)),
        "ControlNet": lambda: controlnet.residuals(inputs),
        "encoder": lambda: model.encode(inputs),
        "decoder": lambda: decode(residuals, encoding),
    }
    if setup.device.type == "cuda":
        ways["overlapped"] = _overlapped(setup.device, lambda: controlnet.residuals(inputs), model, inputs, decode)
    else:
        result.not_run[f"{name}: overlapped"] = "NO_CUDA: streams need a CUDA device"
    times = setup.interleaved(ways)
    figures = {way: measured(f"{name}: {way}", taken, median, informative("ms")) for way, taken in times.items()}
    result.figures += figures.values()
    if "overlapped" in times:
        parts = zip(*(times[way] for way in ("ControlNet", "encoder", "decoder", "overlapped")), strict=True)
        shares = [(max(c, e) + d) / taken for c, e, d, taken in parts]
        result.figures.append(measured(f"{name}: the ideal / overlapped", shares, median, informative()))
    return result


def _overlapped(device: torch.device, control: Step, model: RandomUNet, inputs: DenoiserInput, decode: Any) -> Step:
    aside = torch.cuda.Stream(device)

    def step() -> None:
        main = torch.cuda.current_stream(device)
        aside.wait_stream(main)
        with torch.cuda.stream(aside):
            residuals: Any = control()
        encoding = model.encode(inputs)
        main.wait_stream(aside)
        for tensor in residuals.tensors:
            tensor.record_stream(main)
        decode(residuals, encoding)

    return step


def latent_parallel_row(setup: GpuSetup, network: str) -> RowResult:
    """Both halves of the guidance on one device, and one on each of two (Katz, section 7)."""
    result = RowResult()
    dtype = setup.dtypes()[0]
    model, key, inputs = _made(setup, network, dtype)
    served: Any = model
    one_row = example_input(served, key, 1)
    name = f"{model.size.name} latent parallelism, {name_of(dtype)}"
    ways: dict[str, Step] = {"both rows": lambda: model.predict(inputs), "one row": lambda: model.predict(one_row)}
    if setup.device.type == "cuda" and torch.cuda.device_count() > 1:
        other: Any = RandomUNet(model.size, torch.device("cuda", 1), dtype)
        theirs = example_input(other, key, 1)

        def step() -> None:
            elsewhere, here = other.predict(theirs), model.predict(one_row)
            torch.lerp(elsewhere.to(setup.device, non_blocking=True), here, 7.5)

        ways["two devices"] = step
    else:
        result.not_run[f"{name}: two devices"] = "NO_SECOND_DEVICE: there is one device"
    times = setup.interleaved(ways)
    result.figures += [measured(f"{name}: {way}", taken, median, informative("ms")) for way, taken in times.items()]
    for way in ("one row", "two devices"):
        if way in times:
            ratios = [both / other for both, other in zip(times["both rows"], times[way], strict=True)]
            label = "the ceiling" if way == "one row" else "speed-up"
            result.figures.append(measured(f"{name}: {label}", ratios, median, informative("x")))
    return result


def _reason(error: Exception) -> str:
    return f"{getattr(error, 'reason', type(error).__name__)}: {str(error)[:200]}"
