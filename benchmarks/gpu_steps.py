"""Time a guided step of a UNet: eager, with fused kernels, captured, in halves, under a ControlNet, and on two devices
(rows of `gpu_rows`).
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_networks import SIZES, RandomControlNet, RandomUNet
from benchmarks.gpu_setup import GpuSetup, RowResult, compared, name_of, reason_of
from lab.runs.measure import at_least, informative, measured
from pentimento.devices.choices import CompileMode
from pentimento.diffusion.controlnets import ControlNetForm
from pentimento.diffusion.engine import CompiledDenoiser, cuda_recorder, replaying
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families.model import BatchKey, DenoiserInput
from pentimento.diffusion.kernels import fuse, kernels_for
from pentimento.domain.errors import PentimentoError

Step = Callable[[], object]


def _made(setup: GpuSetup, network: str, dtype: torch.dtype) -> tuple[RandomUNet, BatchKey, DenoiserInput]:
    size = SIZES[network, setup.tiny]
    key = BatchKey(size.side_px, size.side_px, guided=True)
    model: Any = RandomUNet(size, setup.device, dtype)
    return model, key, example_input(model, key, 2)


def _floor_ms(setup: GpuSetup, model: RandomUNet, inputs: DenoiserInput) -> float:
    """Return the lower bound of every way: the longer of reading each weight once and doing each multiplication."""
    with FlopCounterMode(display=False) as counter:
        model.predict(inputs)
    read_s = model.weight_bytes / setup.bytes_a_second
    return 1e3 * max(read_s, counter.get_total_flops() / setup.operations_a_second(model.dtype))


def _captured(model: Any, key: BatchKey) -> CompiledDenoiser:
    denoiser = CompiledDenoiser(model, CompileMode.CAPTURE, replaying(cuda_recorder(model.device)), halves=True)
    denoiser.warm(key, (1,))
    return denoiser


def _served(model: RandomUNet, key: BatchKey) -> CompiledDenoiser:
    """Return the pass with a GPU worker's defaults. Raises FailedPrecondition if the device cannot run it."""
    kernels = kernels_for(model.device)
    network = model.twin()
    fuse(network.denoiser, kernels)
    return _captured(network, key)


def _way(model: RandomUNet, key: BatchKey, inputs: DenoiserInput, *, fused: bool, captured: bool) -> Step:
    """Return one way of the pass. Raises FailedPrecondition if the device cannot run it."""
    network = model.twin() if fused else model
    if fused:
        fuse(network.denoiser, kernels_for(model.device))
    runner = _captured(network, key) if captured else network
    runner.predict(inputs)
    return lambda: runner.predict(inputs)


# Whether kernels are fused, and passes captured.
WAYS = {
    "eager": (False, False),
    "fused kernels": (True, False),
    "captured": (False, True),
    "captured with fused kernels": (True, True),
}


def step_row(setup: GpuSetup, network: str) -> RowResult:
    """Time a step of one guided image, by every way that needs no compiler."""
    result = RowResult()
    for dtype in setup.dtypes():
        model, key, inputs = _made(setup, network, dtype)
        name = f"{model.size.name} step, {name_of(dtype)}"
        steps: dict[str, Step] = {}
        for way, (fused, captured) in WAYS.items():
            try:
                steps[way] = _way(model, key, inputs, fused=fused, captured=captured)
            except (PentimentoError, RuntimeError) as error:
                result.not_run[f"{name}: {way}"] = reason_of(error)
        result.figures += compared(name, setup.interleaved(steps), _floor_ms(setup, model, inputs))
        del steps, model
        gc.collect()
    return result


def seam_row(setup: GpuSetup, network: str) -> RowResult:
    """Measure the cost of the seam: the whole pass against its two halves, eager and as served."""
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
        served = _served(model, key)
        ways["whole, served"] = lambda: served.predict(inputs)
        ways["two halves, served"] = lambda: served.decode(controlled, served.encode(inputs))
    except PentimentoError as error:
        result.not_run[f"{name}: served"] = reason_of(error)
    result.figures += compared(name, setup.interleaved(ways), _floor_ms(setup, model, inputs), informative("x"))
    return result


def overlap_row(setup: GpuSetup, network: str) -> RowResult:
    """Time a step under a ControlNet: eager, as served, and with the ControlNet on a second stream during the encoder
    (Katz, section 5).

    Both run on one device, which one alone fills: the ideal max(C, E) + D needs two devices.
    """
    result = RowResult()
    dtype = setup.dtypes()[0]
    model, key, inputs = _made(setup, network, dtype)
    name = f"{model.size.name} with a ControlNet, {name_of(dtype)}"
    ways: dict[str, Step] = {"eager": _controlled(model, RandomControlNet(model), inputs)}
    try:
        kernels = kernels_for(setup.device)
        served = _served(model, key)
        control = RandomControlNet(model, ControlNetForm(kernels, replaying(cuda_recorder(setup.device))))
        encoding, residuals = served.encode(inputs), control.residuals(inputs)
        ways["served"] = _controlled(served, control, inputs)
        ways["ControlNet"] = lambda: control.residuals(inputs)
        ways["encoder"] = lambda: served.encode(inputs)
        ways["decoder"] = lambda: served.decode(replace(inputs, residuals=residuals), encoding)
        ways["overlapped"] = _overlapped(setup.device, control, served, inputs)
    except PentimentoError as error:
        result.not_run[f"{name}: served"] = reason_of(error)
    times = setup.interleaved(ways)
    result.figures += [measured(f"{name}: {way}", taken, median, informative("ms")) for way, taken in times.items()]
    if "overlapped" in times:
        parts = zip(*(times[way] for way in ("ControlNet", "encoder", "decoder", "overlapped")), strict=True)
        shares = [(max(c, e) + d) / taken for c, e, d, taken in parts]
        result.figures.append(measured(f"{name}: the ideal of two devices / overlapped", shares, median, informative()))
        gains = [eager / taken for eager, taken in zip(times["eager"], times["served"], strict=True)]
        result.figures.append(measured(f"{name}: eager / served", gains, median, at_least(1.0, "x")))
    return result


def _controlled(runner: Any, control: RandomControlNet, inputs: DenoiserInput) -> Step:
    return lambda: runner.decode(replace(inputs, residuals=control.residuals(inputs)), runner.encode(inputs))


def _overlapped(device: torch.device, control: RandomControlNet, runner: Any, inputs: DenoiserInput) -> Step:
    aside = torch.cuda.Stream(device)

    def step() -> None:
        main = torch.cuda.current_stream(device)
        aside.wait_stream(main)
        with torch.cuda.stream(aside):
            residuals = control.residuals(inputs)
        encoding = runner.encode(inputs)
        main.wait_stream(aside)
        for tensor in residuals.tensors:
            tensor.record_stream(main)
        runner.decode(replace(inputs, residuals=residuals), encoding)

    return step


def latent_parallel_row(setup: GpuSetup, network: str) -> RowResult:
    """Time both halves of the guidance on one device, and one on each of two (Katz, section 7)."""
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
