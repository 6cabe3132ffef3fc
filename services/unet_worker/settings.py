"""Define the settings of the UNet worker: flags, PENTIMENTO_UNET_WORKER_… and the table [unet_worker]."""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pentimento.devices.choices import (
    CompileMode,
    DeviceChoice,
    DtypeChoice,
    LatentFormat,
    TextEncoderPlace,
    WeightStorage,
)
from pentimento.devices.claims import DeviceClaim, claim_gpu
from pentimento.domain.adapters import ANY_DIGEST, EMBEDDINGS_FOLDER, IP_ADAPTERS_FOLDER, split_digest
from pentimento.domain.components import DEFAULT_DISK_MIB
from pentimento.domain.errors import InvalidArgument
from pentimento.files.safetensors_header import found_model
from pentimento.files.signed_entries import TrustedEntries
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting
from pentimento.tensors.regions import DEFAULT_DIRECTORY


class SkipMissing(Enum):
    """Choose which of a worker's models may be missing. `all`: without its own it serves nothing."""

    OFF = "off"
    OTHERS = "others"
    ALL = "all"


@dataclass(frozen=True)
class UnetWorkerSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    model: Path = setting(
        help="diffusers directory, one safetensors file, name of a registered model, or NAME=s3://bucket/path@sha256:…"
    )
    skip_missing: SkipMissing = setting(
        SkipMissing.OFF, help="models that may be missing: none (off), other_models (others), also its own (all)"
    )
    model_name: str = setting("", help="name for requests; empty: that of the directory or file")
    expected_digest: str = setting("", help="sha256:… to require; any: accept any; empty: from registry.json, else any")
    other_models: tuple[Path, ...] = setting(
        (), help="models that a plan may switch to, as for model; paths and names optionally with @sha256:…"
    )
    registry_public_keys: Path | None = setting(
        None,
        help="PEM file of ed25519 public keys: models, LoRAs and ControlNets are loaded only by entries with a "
        "signature of such a key (`pentimento models sign`); empty: any",
        must_exist=True,
    )
    adapters_dir: Path | None = setting(
        None,
        help="directory of LoRAs: its registry.json, or files and folders by name; its folder `embeddings` has textual "
        "inversions, `ip-adapters` IP-Adapters: safetensors files, also in folders, each next to its `image_encoder`",
        must_exist=True,
    )
    lora_memory_mib: int = setting(1024, help="host memory for recently used LoRAs", minimum=0)
    component_cache_dir: Path | None = setting(
        None,
        help="directory for components and hashes, which a host's processes may share; empty: only local files, hashed "
        "at every start",
    )
    component_disk_mib: int = setting(DEFAULT_DISK_MIB, help="disk for components, each smaller than it", minimum=1)
    component_host_mib: int = setting(
        0,
        help="memory for components in the disk's cache and for a model read ahead; 0: as the kernel decides",
        minimum=0,
    )
    objects_url: str = setting(
        "file:///var/lib/pentimento/objects",
        help="object store: file:///directory or s3://bucket/prefix[?endpoint=…&region=…]; controller, empty: none",
    )
    grant_key_file: Path | None = setting(
        None, help="keys shared by gateways and workers, one per line; the first signs", must_exist=True
    )
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="device of the networks")
    device_claims_dir: Path | None = setting(
        None, help="directory of GPU locks of this host; empty: the first GPU", must_exist=True
    )
    claims_per_device: int = setting(
        1, help="replicas per GPU, sharing its memory; without a free one the process exits", minimum=1, maximum=64
    )
    dtype: DtypeChoice = setting(DtypeChoice.AUTO, help="precision of the networks")
    weights: WeightStorage = setting(
        WeightStorage.AUTO,
        help="full precision, or eight bits with a scale per output channel; auto: FP8 if the files are",
    )
    text_encoders: TextEncoderPlace = setting(
        TextEncoderPlace.AUTO,
        help="memory of text encoders between prompts; auto: the host's if the model would not fit the GPU",
    )
    threads: int = setting(1, help="torch threads", minimum=1, maximum=256)
    max_size_px: int = setting(0, help="longest side of an image; 0: twice the model's own", minimum=0, maximum=8192)
    tile_px: int = setting(
        0,
        help="decode longer images in tiles of this side: less memory, slightly other pixels; 0: never",
        minimum=0,
        maximum=8192,
    )
    max_batch: int = setting(8, help="requests or streams that share a denoising step", minimum=1, maximum=64)
    memory_budget_mib: int = setting(
        0,
        help="memory for weights and batches; 0: 90 % of the device (of ControlNets half), shared by its processes",
        minimum=0,
    )
    preempt: bool = setting(True, help="let a request with an earlier deadline replace a running one")
    aging_limit_s: float = setting(
        30.0, help="time after arrival at which a request is due, unless its deadline is earlier", minimum=0
    )
    compile: CompileMode = setting(
        CompileMode.AUTO, help="how the forward pass runs; on a GPU with fused kernels, except when off"
    )
    credits: int = setting(0, help="attempts held, apart from those about to end; 0: one batch", minimum=0, maximum=256)
    latent_format: LatentFormat = setting(LatentFormat.EXACT, help="format of stored latents; every format can be read")
    shared_memory_dir: str = setting(
        str(DEFAULT_DIRECTORY),
        help="private in-memory directory for tensors of this host; empty: tensors travel in chunks",
    )
    share_device_memory: bool = setting(False, help="keep tensors in CUDA memory for the other side on the same device")
    controller_address: str = setting("", help="controller, and its standbys; empty: none")
    profiles: tuple[Path, ...] = setting(
        (), help="files or directories of profiles; late LoRAs also have lora-bounds.json next to the LoRAs"
    )
    advertise_address: str = setting(
        "", help="address for other processes; empty: the first of listen, with the host's name"
    )

    def __post_init__(self) -> None:
        if (source := source_of("model", self.model)) is not None:
            object.__setattr__(self, "other_models", (*self.other_models, self.model))
            object.__setattr__(self, "model", Path(source[0]))
        object.__setattr__(self, "model", found_model(self.model))
        if self.missing and not self.may_be_stored and self.skip_missing is not SkipMissing.ALL:
            raise ValueError(f"--model: {self.missing}")
        if self.registry_public_keys is not None and self.expected_digest == ANY_DIGEST:
            raise ValueError("--expected-digest any cannot be given with --registry-public-keys")

    @property
    def embeddings_dir(self) -> Path | None:
        return self._adapters_in(EMBEDDINGS_FOLDER)

    @property
    def ip_adapters_dir(self) -> Path | None:
        return self._adapters_in(IP_ADAPTERS_FOLDER)

    def _adapters_in(self, folder: str) -> Path | None:
        path = self.adapters_dir and self.adapters_dir / folder
        return path if path and path.is_dir() else None

    @property
    def missing(self) -> str:
        """Return the error of a missing model, without which the process cannot serve; "" if it exists."""
        return "" if self.model.exists() else f"no such file or directory: {self.model}"

    @property
    def may_be_stored(self) -> bool:
        return self.component_cache_dir is not None and bool(self.controller_address or self.sources)

    @property
    def sources(self) -> dict[str, tuple[str, str]]:
        """Return address and digest of each model of S3, by name. Raises InvalidArgument."""
        found = (source_of("other_models", given) for given in self.other_models)
        return dict(one for one in found if one is not None)

    @property
    def trusted(self) -> TrustedEntries | None:
        keys = self.registry_public_keys
        return TrustedEntries(keys, self.component_cache_dir) if keys is not None else None

    def claim_gpu(self) -> DeviceClaim | None:
        folder = self.device_claims_dir if self.device is not DeviceChoice.CPU else None
        return claim_gpu(folder, "unet_worker", self.claims_per_device)


# A path has one of the slashes after the scheme of an address.
_SCHEME = re.compile(r"\b(s3|https?):/(?=[^/])")


def source_of(field: str, given: Path) -> tuple[str, tuple[str, str]] | None:
    """Return name, and address and digest, of a `NAME=s3://…@sha256:…`; None for a path. Raises InvalidArgument."""
    name, is_source, _ = str(given).partition("=s3:")
    if not is_source:
        return None
    text = _SCHEME.sub(r"\1://", str(given))
    url, digest = split_digest(field, text.partition("=")[2])
    if not (name and url.startswith("s3://") and digest):
        raise InvalidArgument.of(field, f"must be NAME=s3://bucket/path@sha256:…, got {text[:200]!r}")
    return name, (url, digest)


@dataclass(frozen=True)
class DescribeAdapterSettings:
    """Configure `python -m services.unet_worker.describe_adapter`: flags, PENTIMENTO_DESCRIBE_ADAPTER_… and the table
    [describe_adapter]."""

    adapter: Path = setting(help="directory of a LoRA or a ControlNet (safetensors only)", must_exist=True)


class ComponentAction(Enum):
    LIST = "list"
    PIN = "pin"
    UNPIN = "unpin"
    DROP = "drop"


@dataclass(frozen=True)
class ComponentsSettings:
    """Configure `python -m services.unet_worker.components`: flags, PENTIMENTO_COMPONENTS_… and the table
    [components]."""

    component_cache_dir: Path = setting(help="directory of the components", must_exist=True)
    action: ComponentAction = setting(ComponentAction.LIST, help="`pin` keeps a component, `drop` deletes it")
    digest: str = setting("", help="the component, sha256:…")


@dataclass(frozen=True)
class DescribeSettings:
    """Configure `python -m services.unet_worker.describe`: flags, PENTIMENTO_DESCRIBE_… and the table [describe]."""

    model: str = setting(help="diffusers directory or one file (safetensors only), or s3://bucket/path")
    component_cache_dir: Path | None = setting(
        None, help="directory for the hashes of local files, and for the files of an address of S3"
    )
    component_disk_mib: int = setting(DEFAULT_DISK_MIB, help="disk for components, each smaller than it", minimum=1)
    name: str = setting("", help="registry name; empty: that of the directory or file")
    profiles: tuple[Path, ...] = setting((), help="files or directories with costs of this model, one per device")
    steps: int = setting(
        0, help="steps of requests without them; 0: from its registry or kind", minimum=0, maximum=1000
    )
    guidance_scale: float = setting(
        -1.0, help="guidance scale of requests without one; negative: from its registry or kind"
    )
