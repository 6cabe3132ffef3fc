"""Choose the model's device and precision, and measure used and total memory, in bytes."""

import os
from pathlib import Path

import torch

from pentimento.domain.errors import FailedPrecondition
from services.unet_worker.device.device_backend import DeviceMemory
from services.unet_worker.settings import DeviceChoice, DtypeChoice

BUDGET_SHARE = 0.9
CONTROL_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def choose_device(choice: DeviceChoice) -> torch.device:
    """Return the device. Raises FailedPrecondition if CUDA is requested and unavailable."""
    available = torch.cuda.is_available()
    if choice is DeviceChoice.CUDA and not available:
        raise FailedPrecondition("NO_DEVICE", "--device cuda: no CUDA device can be used")
    return torch.device("cuda" if available and choice is not DeviceChoice.CPU else "cpu")


def choose_dtype(choice: DtypeChoice, device: torch.device) -> torch.dtype:
    if choice is DtypeChoice.AUTO:
        return torch.float32 if device.type == "cpu" else torch.float16
    return {
        DtypeChoice.FLOAT32: torch.float32,
        DtypeChoice.FLOAT16: torch.float16,
        DtypeChoice.BFLOAT16: torch.bfloat16,
    }[choice]


def device_name(device: torch.device) -> str:
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
