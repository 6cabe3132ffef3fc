"""A paper's figure beside ours: rows of numbers, and which of the orderings that the paper states came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """`orders`: each ordering as a sentence, and whether it holds. `note` says what the paper reports, and where ours
    differs and why."""

    rows: Sequence[Mapping[str, Any]]
    orders: Mapping[str, bool]
    note: str

    @property
    def share(self) -> float:
        return sum(self.orders.values()) / len(self.orders)

    def told(self) -> str:
        failed = [sentence for sentence, holds in self.orders.items() if not holds]
        return "all orderings" if not failed else f"not: {'; '.join(failed)}"
