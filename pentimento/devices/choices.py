"""Describe a device without torch: the choice of one and of its precision, and its memory."""

from dataclasses import dataclass
from enum import Enum


class DeviceChoice(Enum):
    """Choose the device. `auto`: CUDA if available."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class DtypeChoice(Enum):
    """Choose the precision. `auto`: float32 on a CPU, float16 on a GPU."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class DeviceMemory:
    used_bytes: int
    total_bytes: int
