"""Define the settings of the ControlNet service: flags, PENTIMENTO_CONTROLNET_SVC_…, table [controlnet_svc]."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pentimento.devices.choices import CompileMode, DeviceChoice, DtypeChoice
from pentimento.devices.claims import DeviceClaim, claim_gpu
from pentimento.domain.adapters import AdapterKind
from pentimento.domain.components import DEFAULT_DISK_MIB
from pentimento.files.adapter_registry import RegisteredAdapter, RegisteredDepthModel, read_adapters, read_depth_model
from pentimento.files.signed_entries import TrustedEntries
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting
from pentimento.tensors.regions import DEFAULT_DIRECTORY


@dataclass(frozen=True)
class ControlNetSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    controlnets: Path = setting(
        help="JSON registry of the ControlNets to serve, and of a depth model for the preprocessor `depth`"
    )
    registry_public_keys: Path | None = setting(
        None,
        help="PEM file of ed25519 public keys: models, LoRAs and ControlNets are loaded only by entries with a "
        "signature of such a key (`pentimento models sign`); empty: any",
        must_exist=True,
    )
    skip_missing: bool = setting(False, help="skip missing files with a log line, and start without any; off: exit")
    component_cache_dir: Path | None = setting(
        None,
        help="directory for components and hashes, which a host's processes may share; empty: only local files, hashed "
        "at every start",
    )
    component_disk_mib: int = setting(DEFAULT_DISK_MIB, help="disk for components, each smaller than it", minimum=1)
    prefetch: tuple[str, ...] = setting((), help="ControlNets to load at start, while they fit")
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="device of the networks")
    device_claims_dir: Path | None = setting(
        None, help="directory of GPU locks of this host; empty: the first GPU", must_exist=True
    )
    claims_per_device: int = setting(
        1, help="replicas per GPU, sharing its memory; without a free one the process exits", minimum=1, maximum=64
    )
    dtype: DtypeChoice = setting(DtypeChoice.AUTO, help="precision of the networks")
    compile: CompileMode = setting(
        CompileMode.AUTO, help="how the forward pass runs; on a GPU with fused kernels, except when off"
    )
    threads: int = setting(1, help="torch threads", minimum=1, maximum=256)
    memory_budget_mib: int = setting(
        0,
        help="memory for weights and batches; 0: 90 % of the device (of ControlNets half), shared by its processes",
        minimum=0,
    )
    credits: int = setting(32, help="open streams", minimum=1, maximum=1024)
    max_batch: int = setting(8, help="requests or streams that share a denoising step", minimum=1, maximum=64)
    shared_memory_dir: str = setting(
        str(DEFAULT_DIRECTORY),
        help="private in-memory directory for tensors of this host; empty: tensors travel in chunks",
    )
    share_device_memory: bool = setting(False, help="keep tensors in CUDA memory for the other side on the same device")
    controller_address: str = setting("", help="controller, and its standbys; empty: none")
    advertise_address: str = setting(
        "", help="address for other processes; empty: the first of listen, with the host's name"
    )

    def __post_init__(self) -> None:
        if self.compile is CompileMode.COMPILE:
            raise ValueError("--compile of ControlNets must be auto, off or capture, got compile")
        if not self.skip_missing and not self.controlnets.exists():
            raise ValueError(f"--controlnets: no such file or directory: {self.controlnets}")

    def claim_gpu(self) -> DeviceClaim | None:
        """Claim a GPU for this process, unless it must run on the CPU: the last one, since workers begin with the
        first. Raises FailedPrecondition NO_FREE_DEVICE."""
        folder = self.device_claims_dir if self.device is not DeviceChoice.CPU else None
        return claim_gpu(folder, "controlnet_svc", self.claims_per_device, from_last=True)

    @cached_property
    def registered(self) -> dict[str, RegisteredAdapter]:
        """Return the registry's ControlNets by name; none if the registry is missing and may be. Raises errors of the
        registry, and of entries that are not signed."""
        if self.skip_missing and not self.controlnets.exists():
            return {}
        kinds = (AdapterKind.CONTROLNET,)
        return read_adapters(self.controlnets, kinds, skip_missing=self.skip_missing, trusted=self._trusted())

    def registered_depth_model(self) -> RegisteredDepthModel | None:
        """Return the registry's depth model; None without one, or if it is missing and may be. Raises as
        `registered`."""
        return read_depth_model(self.controlnets, skip_missing=self.skip_missing, trusted=self._trusted())

    def _trusted(self) -> TrustedEntries | None:
        keys = self.registry_public_keys
        return TrustedEntries(keys, self.component_cache_dir) if keys is not None else None
