"""What a prompt tells of a cascade before anything is painted."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """`HARD` prompts need not be painted light; of `EASY` ones no score need be asked."""

    UNSURE = "unsure"
    HARD = "hard"
    EASY = "easy"


@dataclass(frozen=True)
class PromptForesight:
    """The probability 0..1 that the light picture will be as good as the heavy one, and what follows from it."""

    probability: float
    verdict: Verdict
