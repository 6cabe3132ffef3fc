"""Build a paced ControlNet process: the real one with paced networks."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from lab.emulation.pace import ControlNetPace, DevicePace, read_pace
from lab.emulation.paced_controlnets.network import PacedControlNet, stamped_tensor
from pentimento.devices.choices import DeviceChoice, DtypeChoice
from pentimento.domain.adapters import Adapter, AdapterKind
from services.controlnet_svc.networks import ShelvedNetwork
from services.controlnet_svc.settings import ControlNetSettings
from services.controlnet_svc.wiring import ControlNetProcess, NetworkSource, wire


def wire_paced(settings: ControlNetSettings) -> ControlNetProcess:
    """Build the process, inside its event loop. `--controlnets` names a pace's file. Raises InvalidArgument or NotFound
    for it. The default is half precision, as on the devices that paces describe."""
    dtype = DtypeChoice.FLOAT16 if settings.dtype is DtypeChoice.AUTO else settings.dtype
    return wire(replace(settings, device=DeviceChoice.CPU, dtype=dtype), NetworkSource(_networks, stamped_tensor))


def _networks(settings: ControlNetSettings, device: torch.device, dtype: torch.dtype) -> Mapping[str, ShelvedNetwork]:
    pace = read_pace(settings.controlnets)
    return {controlnet.name: _shelved(pace, controlnet, dtype) for controlnet in pace.controlnets}


def paced_controlnet_digest(controlnet: ControlNetPace) -> str:
    """Return the digest of a paced ControlNet, which is that of no real one."""
    return f"sha256:{hashlib.sha256(f'paced controlnet {controlnet}'.encode()).hexdigest()}"


def _shelved(pace: DevicePace, controlnet: ControlNetPace, dtype: torch.dtype) -> ShelvedNetwork:
    digest = paced_controlnet_digest(controlnet)
    adapter = Adapter(controlnet.name, AdapterKind.CONTROLNET, digest, pace.family)
    return ShelvedNetwork(adapter, controlnet.memory_bytes, partial(_load, pace, controlnet, digest, dtype))


def _load(pace: DevicePace, controlnet: ControlNetPace, digest: str, dtype: torch.dtype) -> PacedControlNet:
    time.sleep(controlnet.load_s)
    return PacedControlNet(pace, controlnet, digest, dtype)
