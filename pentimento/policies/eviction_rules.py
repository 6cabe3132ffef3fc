"""Rank the items of a full cache for eviction: pure rules over access records (`domain.access`).

FIFO is MoDM's sliding window (5.4). LCBFU is NIRVANA's (5.4): f * K, with f uses that save K steps each. The paper does
not define the first f, ties, or which item's f rises when a hole lets another K serve. Here f starts at
`first_frequency` (1), the older of equals is evicted, and the item that served counts the use. LRU and LFU are the
paper's comparators (7.4); LFU breaks ties by the least recent use.

`AgedBenefit` is ours. LCBFU never forgets a use, so it evicts new items before old ones without demand, although most
reuse is of new items. Here uses fade, at a rate that follows the size of the cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log
from types import MappingProxyType

from pentimento.domain.access import AccessRecord, CountingRule, EvictionRule, FifoRule, Rank


@dataclass(frozen=True)
class LruRule(CountingRule):
    """Evict the least recently used item first; an addition counts as a use."""

    def rank(self, record: AccessRecord) -> Rank:
        """Return the place in the order of last uses."""
        return 0.0, record.used_tick


@dataclass(frozen=True)
class LfuRule(CountingRule):
    """Evict the least frequently used item first, of equals the least recently used."""

    def rank(self, record: AccessRecord) -> Rank:
        """Return the number of uses, then the last one."""
        return float(record.use_count), record.used_tick


@dataclass(frozen=True)
class LcbfuRule(CountingRule):
    """Evict the least computationally beneficial and frequently used item first (NIRVANA, section 5.4): the lowest
    f * K, the older of equals. `first_frequency` is f before the first use."""

    first_frequency: float = 1.0

    def rank(self, record: AccessRecord) -> Rank:
        """Return f * K, then the place in the order of additions."""
        return (self.first_frequency + record.use_count) * record.saved_steps, record.added_tick


@dataclass(frozen=True)
class AgedBenefit:
    """Evict the item with the lowest expected benefit first: steps saved per byte, times uses that fade.

    The score is the logarithm of (K / bytes)^`density_weight` * F^`use_weight` * exp(t / tau), where t is the tick of
    the last use and F the sum of exp(-(t - tick) / tau) over the addition and all uses. tau is `memory_share` times
    `capacity_count`: an unused item fades by a factor e in tau ticks. A use counts `beside_share` for the other items
    of the entry, since the next such request may need another K. Raises ValueError for a wrong capacity or share.
    """

    capacity_count: int
    memory_share: float = 3.0
    density_weight: float = 1.5
    use_weight: float = 0.5
    beside_share: float = 0.0

    def __post_init__(self) -> None:
        if self.capacity_count < 1 or self.memory_share <= 0:
            raise ValueError("capacity_count must be at least 1 and memory_share above 0")

    @property
    def memory_ticks(self) -> float:
        """Return tau, in ticks."""
        return self.memory_share * self.capacity_count

    def rank(self, record: AccessRecord) -> Rank:
        """Return the logarithm of the benefit at tick 0, then the place in the order of additions."""
        density = log(record.saved_steps / max(record.size_bytes, 1))
        recent = record.used_tick / self.memory_ticks
        return recent + self.density_weight * density + self.use_weight * log(record.faded_uses), record.added_tick

    def used(self, record: AccessRecord, tick: int) -> AccessRecord:
        """Return the record with one more use, the earlier ones faded up to `tick`."""
        return replace(self._faded(record, tick, 1.0), use_count=record.use_count + 1)

    def beside(self, record: AccessRecord, tick: int) -> AccessRecord:
        """Return the record with `beside_share` more of a use."""
        return self._faded(record, tick, self.beside_share) if self.beside_share else record

    def _faded(self, record: AccessRecord, tick: int, share: float) -> AccessRecord:
        kept = exp(-(tick - record.used_tick) / self.memory_ticks)
        return replace(record, used_tick=tick, faded_uses=record.faded_uses * kept + share)


# Tuned on the first half of a log of prompts (benchmarks/eviction.py): only misses add latents, as in the paper.
AGED_WHERE_MISSES_ADD: Mapping[str, float] = MappingProxyType(
    {"memory_share": 3.0, "density_weight": 1.5, "use_weight": 0.5, "beside_share": 0.0}
)
# The same, if refined hits also add the latents after their start: then the newest of many similar items serves best.
AGED_WHERE_ALL_ADD: Mapping[str, float] = MappingProxyType(
    {"memory_share": 5.0, "density_weight": 0.0, "use_weight": 0.25, "beside_share": 0.3}
)


def eviction_rule(name: str, capacity_count: int, *, hits_add: bool = False) -> EvictionRule:
    """Return the rule of that name for a cache of about `capacity_count` items. `hits_add`: refined hits add items,
    not only misses. Raises ValueError for an unknown name."""
    if name == "aged":
        return AgedBenefit(capacity_count, **(AGED_WHERE_ALL_ADD if hits_add else AGED_WHERE_MISSES_ADD))
    if name not in _SIMPLE_RULES:
        raise ValueError(f"eviction must be one of {', '.join(EVICTION_NAMES)}, got {name!r}")
    return _SIMPLE_RULES[name]


_SIMPLE_RULES: Mapping[str, EvictionRule] = MappingProxyType(
    {"fifo": FifoRule(), "lru": LruRule(), "lfu": LfuRule(), "lcbfu": LcbfuRule()}
)
EVICTION_NAMES = (*_SIMPLE_RULES, "aged")
