"""Measure the device itself, the basis of the other rows' floors (row of `gpu_rows`)."""

import torch

from benchmarks.gpu_setup import GpuSetup, RowResult, name_of
from lab.runs.measure import informative, measured


def device_row(setup: GpuSetup) -> RowResult:
    """Measure a copy's bytes per second and a product's operations per second."""
    result = RowResult()
    name = torch.cuda.get_device_name(setup.device) if setup.device.type == "cuda" else "the processor"
    copied = [setup.bytes_a_second / 1e9]
    result.figures.append(measured(f"{name}: copies within its memory", copied, max, informative("GB/s")))
    for dtype in setup.dtypes():
        rate = [setup.operations_a_second(dtype) / 1e12]
        result.figures.append(measured(f"{name}: {name_of(dtype)} products", rate, max, informative("TFLOP/s")))
    return result
