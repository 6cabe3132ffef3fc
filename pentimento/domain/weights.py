"""Memory of models' weights on a worker's device, and of the next model's while a worker changes its model."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class ComponentWeights:
    """Memory of the weights of a held model's component, by the pipeline's name. `precision`: the type of most of its
    bytes, such as float16 or int8; gguf for its blocks. `in_host_memory`: they are on the device while a prompt is
    encoded, a layer at a time."""

    component: str
    precision: str
    size_bytes: int
    in_host_memory: bool = False

    @property
    def device_bytes(self) -> int:
        """Return the memory of the device that they hold."""
        return 0 if self.in_host_memory else self.size_bytes


@dataclass(frozen=True)
class ShortModel:
    """A model that a worker does not load: its weights need more than the worker's part of the device's memory."""

    model: str
    needed_bytes: int
    budget_bytes: int

    def __str__(self) -> str:
        needed, budget = self.needed_bytes / 1e9, self.budget_bytes / 1e9
        return f"{self.model} needs {needed:.1f} GB for its weights, {budget:.1f} GB of the device are this worker's"


class SwitchWay(Enum):
    """When a model leaves the device for the next one: after that one serves, before it is placed from host memory, or
    before it is read."""

    BESIDE = "beside"
    STAGED = "staged"
    UNLOAD_FIRST = "unload_first"


@dataclass(frozen=True)
class ModelChange:
    """A worker's last change to another model: its weights, and the free memory then of the host for staged models and
    of the device."""

    model: str
    way: SwitchWay
    weight_bytes: int
    host_bytes: int
    device_bytes: int

    def __str__(self) -> str:
        weights, host, device = (
            f"{size / 1e9:.1f} GB" for size in (self.weight_bytes, self.host_bytes, self.device_bytes)
        )
        how = {
            SwitchWay.BESIDE: "loaded while the former model served",
            SwitchWay.STAGED: "read while the former model served",
            SwitchWay.UNLOAD_FIRST: "read after the former model had left",
        }[self.way]
        return f"{self.model} was {how}: {weights} of weights, {host} of the host and {device} of the device free"


def way_to_switch(staged_bytes: int, placed_bytes: int, host_bytes: int, device_bytes: int) -> SwitchWay:
    """Return the way to load weights that take `staged_bytes` of the host and `placed_bytes` of the device, with
    `host_bytes` and `device_bytes` free.

    With room on the device for both, the next model is loaded there while the current one generates, and requests of
    both run until the current one's have ended. Else it is read into host memory first, and placed once the device is
    free. Else the current model leaves before the next one is read."""
    if staged_bytes > host_bytes:
        return SwitchWay.UNLOAD_FIRST
    return SwitchWay.BESIDE if placed_bytes <= device_bytes else SwitchWay.STAGED
