"""Settings of the ControlNet service: flags, PENTIMENTO_CONTROLNET_SVC_… and the table [controlnet_svc]."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pentimento.devices.claims import DeviceClaim, claim_gpu
from pentimento.domain.adapters import AdapterKind
from pentimento.files.adapter_registry import RegisteredAdapter, read_adapters
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting
from pentimento.tensors.regions import DEFAULT_DIRECTORY


@dataclass(frozen=True)
class ControlNetSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    controlnets: Path = setting(help="registry of models (JSON) whose ControlNets are served")
    skip_missing: bool = setting(
        False,
        help="log a ControlNet that the registry names and that is not there, and go on without it; without a registry"
        " or any ControlNet serve nothing; else end",
    )
    pipelining_bounds: Path | None = setting(
        None,
        help="JSON file of the steps from which ControlNets' residuals resemble those of the step before; without one"
        " they are never used in its place",
        must_exist=True,
    )
    prefetch: tuple[str, ...] = setting((), help="ControlNets loaded before the first request, as far as they fit")
    device: str = setting("auto", help="auto, cpu or cuda; auto takes CUDA where it is there")
    device_claims_dir: Path | None = setting(
        None,
        help="directory of the host's processes in which each claims a GPU by a lock, and sees no other one; none: the"
        " first GPU",
        must_exist=True,
    )
    claims_per_device: int = setting(
        1, help="replicas of this service that may claim one GPU; one that finds none free ends", minimum=1, maximum=64
    )
    dtype: str = setting("auto", help="float32, float16 or bfloat16; auto: float32 on a CPU, else float16")
    kernels: bool = setting(True, help="on a GPU with Triton: fused kernels in the layers of UNets' ControlNets")
    capture: bool = setting(True, help="on a GPU: CUDA graphs of passes of UNets' ControlNets that come again")
    threads: int = setting(1, help="torch threads", minimum=1, maximum=256)
    memory_budget_mib: int = setting(
        0, help="for the weights of resident ControlNets; 0: half of the device's memory", minimum=0
    )
    max_streams: int = setting(32, help="streams that are open at once: its credits", minimum=1, maximum=1024)
    max_batch: int = setting(8, help="steps of different streams in a forward pass", minimum=1, maximum=64)
    shared_memory_dir: str = setting(
        str(DEFAULT_DIRECTORY),
        help="directory in memory that workers of its host share, closed to others; empty: tensors go in chunks",
    )
    residual_parts: bool = setting(
        True, help="send a transformer's residuals over shared memory in parts, first blocks first"
    )
    share_device_memory: bool = setting(
        False, help="hand tensors over in the CUDA device's memory to workers that compute on the same device"
    )
    trace_file: str = setting(
        "", help="file that gets a line for each forward pass, with its begin and end; empty: none is written"
    )
    controller_address: str = setting("", help="controller to register with, and its standbys; empty for none")
    advertise_address: str = setting(
        "", help="where others reach this process; empty for the first listen address, by the host's name"
    )

    def __post_init__(self) -> None:
        if not self.skip_missing and not self.controlnets.exists():
            raise ValueError(f"--controlnets: no such file or directory: {self.controlnets}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"--device must be auto, cpu or cuda, got {self.device!r}")
        if self.dtype not in ("auto", "float32", "float16", "bfloat16"):
            raise ValueError(f"--dtype must be auto, float32, float16 or bfloat16, got {self.dtype!r}")

    def claim_gpu(self) -> DeviceClaim | None:
        """Claim a GPU for this process, where it may run on one: the last, since workers begin with the first. Raises
        FailedPrecondition NO_FREE_DEVICE."""
        folder = self.device_claims_dir if self.device != "cpu" else None
        return claim_gpu(folder, "controlnet_svc", self.claims_per_device, from_last=True)

    @cached_property
    def registered(self) -> dict[str, RegisteredAdapter]:
        """The registry's ControlNets by name; none without a registry where it may be missing. Raises what is wrong
        with it."""
        if self.skip_missing and not self.controlnets.exists():
            return {}
        return read_adapters(self.controlnets, (AdapterKind.CONTROLNET,), skip_missing=self.skip_missing)
