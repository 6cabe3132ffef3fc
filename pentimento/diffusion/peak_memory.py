"""Measure the peak memory of a function call: of the CUDA device, or of this process if the model runs on the CPU.
Linux stores the latter as a resettable high-water mark; on other systems the result is None."""

from collections.abc import Callable
from pathlib import Path

import torch

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_HIGH_WATER = "5"
_KIB = 1024


def peak_bytes_of(device: torch.device, work: Callable[[], object]) -> int | None:
    """Run `work` and return the bytes in use at its peak, including those in use before; None if that cannot be
    measured."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    resettable = _reset_high_water()
    work()
    return _status_bytes("VmHWM") if resettable else None


def used_bytes(device: torch.device) -> int | None:
    """Return the bytes in use now; None if that cannot be measured."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _status_bytes("VmRSS")


def _reset_high_water() -> bool:
    try:
        _CLEAR_REFS.write_text(_RESET_HIGH_WATER)
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith(f"{field}:")), None)
