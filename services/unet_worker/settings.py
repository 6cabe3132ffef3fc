"""Settings of the UNet worker: flags, PENTIMENTO_UNET_WORKER_… and the table [unet_worker]."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting


class DeviceChoice(Enum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class DtypeChoice(Enum):
    """`auto`: float32 on a CPU, float16 on a GPU."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class UnetWorkerSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    model: Path = setting(help="diffusers checkpoint directory (safetensors only)", must_exist=True)
    model_name: str = setting("", help="name that requests use; empty for the directory's name")
    objects_url: str = setting("file:///var/lib/pentimento/objects", help="object store of latents and images")
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="where the model runs")
    dtype: DtypeChoice = setting(DtypeChoice.AUTO, help="precision that the model runs in")
    threads: int = setting(1, help="torch threads of the model", minimum=1, maximum=256)
    default_steps: int = setting(0, help="steps of requests that name none; 0: by registry.json, else 50", minimum=0)
    default_guidance_scale: float = setting(
        -1.0, help="guidance of requests that name none; below 0: by registry.json, else 7.5", minimum=-1, maximum=100
    )
    max_steps: int = setting(1000, help="most steps of a request", minimum=1, maximum=1000)
    max_size_px: int = setting(0, help="longest side of a picture; 0: twice the model's own", minimum=0, maximum=8192)
    max_prompt_chars: int = setting(10_000, help="characters of a prompt", minimum=1)
    prompt_memo_entries: int = setting(256, help="encoded prompts kept", minimum=1)
    credits: int = setting(
        2, help="attempts held at once for a frontdoor: one running, the others ready", minimum=1, maximum=64
    )
    progress_interval_ms: int = setting(100, help="least time between two progress messages", minimum=0)
    preview_side_px: int = setting(128, help="longest side of a preview", minimum=8, maximum=1024)
    orphan_s: float = setting(10.0, help="how long an attempt outlives its stream", minimum=0)
    donor_timeout_s: float = setting(
        2.0, help="wait for a cached latent or image before painting from noise", minimum=0
    )
    upload_timeout_s: float = setting(2.0, help="wait for uploads once the picture is done", minimum=0)
    controller_address: str = setting("", help="controller to register with; empty for none")
    advertise_address: str = setting("", help="where others reach this process; empty for the first listen address")
