"""Choose a device, and how models run on it, without torch."""

from dataclasses import dataclass
from enum import Enum


class DeviceChoice(Enum):
    """Choose the device. `auto`: CUDA if available."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class DtypeChoice(Enum):
    """Choose the precision. `auto`: float32 on a CPU; on a GPU float16, or bfloat16 for FLUX and Z-Image."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class WeightStorage(Enum):
    """Choose how weights are stored. `auto`: in the model's precision, or in FP8 if the files are. `full`: in the
    model's precision. `fp8`, `int8`: in eight bits, with a scale for each output channel."""

    AUTO = "auto"
    FULL = "full"
    FP8 = "fp8"
    INT8 = "int8"


class TextEncoderPlace(Enum):
    """Choose where text encoders are between prompts. `device`: next to the denoiser. `host`: in host memory; each
    layer is copied to the device for its call. `auto`: in host memory where the model would not fit otherwise."""

    AUTO = "auto"
    DEVICE = "device"
    HOST = "host"


class CompileMode(Enum):
    """Choose how the forward pass runs. `auto`: `capture` on a GPU, else off. `off`: the layers of diffusers, with its
    bits; else with fused kernels on a GPU where they run: normalisations with their neighbours, GEGLU, sums. `compile`:
    torch.compile, which delays serving. `capture`: CUDA graphs of the uncompiled pass, also of its two halves."""

    AUTO = "auto"
    OFF = "off"
    COMPILE = "compile"
    CAPTURE = "capture"


class LatentFormat(Enum):
    """Choose the precision of stored latents. `exact`: the model's; `float16`: float32 in half precision."""

    EXACT = "exact"
    FLOAT16 = "float16"


@dataclass(frozen=True)
class DeviceMemory:
    used_bytes: int
    total_bytes: int
