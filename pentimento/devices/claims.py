"""Claims on GPUs: processes that are shown the same devices of a host each take one that is free.

    claim = claim_device(folder, "unet_worker", gpus_of(listed_gpus()), 1)
    os.environ["CUDA_VISIBLE_DEVICES"] = claim.device  # before the first call of CUDA

A claim is a lock (flock) on a file of a folder that the processes share. The kernel ends it with the process, however
that ends, and it holds across containers of one host.
"""

import fcntl
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pentimento.devices.choices import DeviceChoice
from pentimento.domain.errors import FailedPrecondition

VISIBLE = "CUDA_VISIBLE_DEVICES"
_LIST_TIMEOUT_S = 60.0
# Embedders or discriminators on one GPU: more than anyone starts, since each takes a hundredth of its memory.
_SMALL_PER_DEVICE = 64
_UUID = re.compile(r"UUID: ((GPU|MIG)-[\w/-]+)\)")


@dataclass(frozen=True)
class DeviceClaim:
    """A device, and the open file that locks it."""

    device: str
    descriptor: int

    def release(self) -> None:
        """Let others have the device."""
        os.close(self.descriptor)


def claim_device(folder: Path, kind: str, devices: Sequence[str], claims_per_device: int) -> DeviceClaim:
    """Claim the first of the devices with the fewest processes of that kind. Raises FailedPrecondition NO_FREE_DEVICE
    where each has `claims_per_device` already."""
    for number in range(claims_per_device):
        for device in devices:
            descriptor = _locked(folder / f"{kind}.{device.replace('/', '_')}.{number}.lock")
            if descriptor is not None:
                return DeviceClaim(device, descriptor)
    taken = f"each of {len(devices)} GPUs has {claims_per_device} of these processes"
    advice = "run fewer, or raise --claims-per-device to have more of them share a GPU"
    raise FailedPrecondition("NO_FREE_DEVICE", f"no GPU is free: {taken}; {advice}")


def _locked(file: Path) -> int | None:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def claim_gpu(folder: Path | None, kind: str, claims_per_device: int, *, from_last: bool = False) -> DeviceClaim | None:
    """Claim a GPU for this process, which sees no other one from then on; None without a folder or a GPU. Call it
    before the first call of CUDA. `from_last`: take the last of equally free GPUs."""
    devices = gpus_of(listed_gpus()) if folder is not None else ()
    if folder is None or not devices:
        return None
    claim = claim_device(folder, kind, devices[::-1] if from_last else devices, claims_per_device)
    os.environ[VISIBLE] = claim.device
    return claim


def place_next_to_models(folder: Path | None, kind: str, device: DeviceChoice) -> None:
    """Show this process the GPU with the fewest processes of its kind, the last of equals: its small networks share the
    GPU with a model's. All GPUs stay visible without a folder or for the CPU."""
    claim_gpu(folder if device is not DeviceChoice.CPU else None, kind, _SMALL_PER_DEVICE, from_last=True)


def visible_gpus() -> str:
    """Return which GPUs this process sees, as CUDA_VISIBLE_DEVICES says it; "all" where it does not."""
    return os.environ.get(VISIBLE, "all")


def listed_gpus() -> str:
    """Return what nvidia-smi lists, "" where it is not there or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LIST_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def gpus_of(listed: str, visible: str | None = None) -> tuple[str, ...]:
    """Return the UUIDs of the listed GPUs; a GPU that is split (MIG) has those of its parts. `visible` chooses by
    numbers or UUIDs, by default as CUDA_VISIBLE_DEVICES does."""
    found: list[str] = []
    for uuid, kind in _UUID.findall(listed):
        if kind == "MIG" and found and found[-1].startswith("GPU-"):
            found.pop()
        found.append(uuid)
    visible = os.environ.get(VISIBLE) if visible is None else visible
    if visible is None:
        return tuple(found)
    chosen = [one.strip() for one in visible.split(",") if one.strip()]
    return tuple(found[int(one)] if one.isdecimal() and int(one) < len(found) else one for one in chosen)
