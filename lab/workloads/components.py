"""Sizes and load times of components, and the requests of a log that use them.

Neither the production log nor the mix has sizes or load times. Sizes are log-uniform within the paper's ranges, by a
hash of the name. The mean load time of each kind is the paper's; of it 68 % is data movement, in proportion to the
size, and the rest is initialisation (MLoRA, sections 2.1, 3.3 and 5.2).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from math import log
from types import MappingProxyType

from lab.workloads.production import Choice
from lab.workloads.readers import ProductionRequest
from pentimento.domain.components import Loadable

GB = 1_000_000_000
MOVED_SHARE = (6.8 + 11.3) / (6.8 + 11.3 + 4.6 + 3.9)


@dataclass(frozen=True)
class ComponentKind:
    """Bound the sizes of a kind of component in GB, and give its mean load time."""

    least_gb: float
    most_gb: float
    mean_load_s: float

    @property
    def mean_gb(self) -> float:
        return (self.most_gb - self.least_gb) / log(self.most_gb / self.least_gb)

    def loadable(self, name: str) -> Loadable:
        """Return the component of that name; its size depends on the name only."""
        place = int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) / 2**64
        size_gb = self.least_gb * (self.most_gb / self.least_gb) ** place
        load_s = self.mean_load_s * (1.0 - MOVED_SHARE + MOVED_SHARE * size_gb / self.mean_gb)
        return Loadable(name, round(size_gb * GB), load_s)


KINDS: Mapping[str, ComponentKind] = MappingProxyType(
    {
        "model": ComponentKind(1.0, 20.0, 22.6),
        "lora": ComponentKind(0.1, 1.0, 4.6),
        "controlnet": ComponentKind(0.5, 10.0, 5.1),
    }
)


@dataclass(frozen=True)
class ComponentUse:
    """Hold the components that a request uses at a time."""

    at_s: float
    components: tuple[Loadable, ...]


@cache
def loadable(kind: str, name: str) -> Loadable:
    """Return the component of a kind (`KINDS`) and name."""
    return KINDS[kind].loadable(name)


def uses_of_log(requests: Iterable[ProductionRequest]) -> list[ComponentUse]:
    """Return the checkpoints and LoRAs of a production log, in the order of its times."""
    ordered = sorted(requests, key=lambda request: request.at_s)
    return [_use(one.at_s, [one.checkpoint], [name for name, _ in one.loras], ()) for one in ordered if one.checkpoint]


def uses_of_choices(choices: Iterable[Choice], times_s: Iterable[float]) -> list[ComponentUse]:
    """Return the components of drawn choices at ascending times."""
    return [
        _use(at_s, [choice.model], choice.loras, choice.controlnets)
        for choice, at_s in zip(choices, times_s, strict=True)
    ]


def _use(at_s: float, models: Sequence[str], loras: Sequence[str], controlnets: Sequence[str]) -> ComponentUse:
    named = [*(("model", name) for name in models), *(("lora", name) for name in loras)]
    named += [("controlnet", name) for name in controlnets]
    return ComponentUse(at_s, tuple(loadable(kind, name) for kind, name in dict.fromkeys(named)))
