"""A paper's figure beside ours: rows of numbers, and which of the orderings that the paper states came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """`orders`: each ordering as a sentence, and whether it holds. `note` says what the paper reports, and where ours
    differs and why. `beside`: the same orderings under other settings, which are not judged."""

    rows: Sequence[Mapping[str, Any]]
    orders: Mapping[str, bool]
    note: str
    beside: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return sum(self.orders.values()) / len(self.orders)

    @property
    def failed(self) -> list[str]:
        return [sentence for sentence, holds in self.orders.items() if not holds]

    def told(self) -> str:
        return _told(self.orders)

    def lines(self) -> list[str]:
        """What does not hold, judged and beside it."""
        return [self.told(), *(f"  {name}: {_told(orders)}" for name, orders in self.beside.items())]


def _told(orders: Mapping[str, bool]) -> str:
    failed = [sentence for sentence, holds in orders.items() if not holds]
    return "all orderings" if not failed else f"not: {'; '.join(failed)}"
