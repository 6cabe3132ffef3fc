"""Compare a paper's figure with ours: rows of numbers, and the paper's orderings with whether they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """Hold one comparison.

    `orders`: each ordering as a sentence, and whether it holds. `note`: the paper's result, and why ours differs.
    `beside`: the same orderings under other settings, without a target.
    """

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
        """Return the orderings that do not hold, with and without a target."""
        return [self.told(), *(f"  {name}: {_told(orders)}" for name, orders in self.beside.items())]


def _told(orders: Mapping[str, bool]) -> str:
    failed = [sentence for sentence, holds in orders.items() if not holds]
    return "all orderings" if not failed else f"not: {'; '.join(failed)}"
