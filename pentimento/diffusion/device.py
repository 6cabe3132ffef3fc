"""Choose a device and its precision, and measure its memory in bytes: used, total, and at the peak of a function call.

The peak on a CPU is that of this process, which Linux stores as a resettable high-water mark; on other systems it is
None."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from pentimento.devices.choices import DeviceChoice, DeviceMemory, DtypeChoice
from pentimento.domain.errors import FailedPrecondition

BUDGET_SHARE = 0.9
CONTROL_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_GROUP_USED, _GROUP_STAT = Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory.stat")
_MEMORY = Path("/proc/meminfo")
# Share of the memory that stays free for others.
_SPARE_SHARE = 0.05
_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_HIGH_WATER = "5"
_KIB = 1024
# The peak is one number of the process.
_peak = threading.Lock()


def choose_device(choice: DeviceChoice) -> torch.device:
    """Return the device. Raises FailedPrecondition if CUDA is requested and unavailable."""
    available = torch.cuda.is_available()
    if choice is DeviceChoice.CUDA and not available:
        raise FailedPrecondition("NO_DEVICE", "--device cuda: no CUDA device can be used")
    return torch.device("cuda" if available and choice is not DeviceChoice.CPU else "cpu")


def exact_device(choice: DeviceChoice) -> torch.device:
    """Return the device of a small network, after turning TF32 off in this process: its results are compared with a
    CPU's, and TF32 rounds a convolution's inputs to 10 bits. Raises FailedPrecondition like `choose_device`."""
    torch.backends.cudnn.allow_tf32 = False
    return choose_device(choice)


def choose_dtype(choice: DtypeChoice, device: torch.device, half: torch.dtype = torch.float16) -> torch.dtype:
    """Return the chosen type; by default float32 on a CPU, else `half`."""
    if choice is DtypeChoice.AUTO:
        return torch.float32 if device.type == "cpu" else half
    dtype: torch.dtype = getattr(torch, choice.value)
    return dtype


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def memory_budget_bytes(device: torch.device, budget_mib: int, sharer_count: int = 1) -> int:
    """Return the memory for weights and batches: the setting, else a sharer's part of nine tenths of the device's
    memory, or, on the CPU, of the control group's limit."""
    if budget_mib:
        return budget_mib * 2**20
    total = device_memory(device).total_bytes
    return int(min(total, _group_limit_bytes(total) if device.type == "cpu" else total) * BUDGET_SHARE / sharer_count)


def _group_limit_bytes(default: int) -> int:
    try:
        limit = CONTROL_GROUP_LIMIT.read_text().strip()
    except OSError:
        return default
    return int(limit) if limit.isdigit() else default


def device_memory(device: torch.device) -> DeviceMemory:
    """Return used and total memory; of a CPU, this process's resident memory and the machine's."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(total - free, total)
    page = os.sysconf("SC_PAGE_SIZE")
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return DeviceMemory(resident * page, os.sysconf("SC_PHYS_PAGES") * page)


def free_host_bytes() -> int:
    """Return the memory that the host and this process's control group can give, without a spare part; 0 where it
    cannot be measured. Cached files count as free."""
    found = {name.rstrip(":"): int(value) * _KIB for name, value, *_ in _lines_of(_MEMORY)}
    free = found.get("MemAvailable", 0) - int(found.get("MemTotal", 0) * _SPARE_SHARE)
    if limit := _group_limit_bytes(0):
        cached = sum(int(value) for name, value in _lines_of(_GROUP_STAT) if name == "file")
        used = sum(int(value) for (value,) in _lines_of(_GROUP_USED))
        free = min(free, limit - used + cached - int(limit * _SPARE_SHARE))
    return max(free, 0)


def free_device_bytes(device: torch.device, budget_bytes: int) -> int:
    """Return the part of a budget that this process does not use, at most what the device can give."""
    if device.type != "cuda":
        return min(budget_bytes - (used_bytes(device) or 0), free_host_bytes())
    free, _ = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    return min(budget_bytes - allocated, free + torch.cuda.memory_reserved(device) - allocated)


def _lines_of(file: Path) -> list[list[str]]:
    """Return the words of a file's lines; none where the system has no such file."""
    try:
        return [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return []


def peak_bytes_of(device: torch.device, work: Callable[[], object]) -> int | None:
    """Run `work` and return the bytes in use at its peak, including those in use before; None if that cannot be
    measured. One thread of the process measures at a time."""
    with _peak:
        return _peak_bytes(device, work)


def _peak_bytes(device: torch.device, work: Callable[[], object]) -> int | None:
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
