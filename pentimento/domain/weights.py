"""Memory of models' weights on a worker's device."""

from dataclasses import dataclass


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
