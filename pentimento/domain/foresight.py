"""Predictions from a prompt about a cascade, before anything is generated."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """`HARD` prompts can skip the light stage; `EASY` ones need no score."""

    UNSURE = "unsure"
    HARD = "hard"
    EASY = "easy"


@dataclass(frozen=True)
class PromptForesight:
    """The probability, 0..1, that the light image will be as good as the heavy one, and the verdict."""

    probability: float
    verdict: Verdict
