"""Predictions from a prompt about a cascade, before anything is generated."""

from dataclasses import dataclass
from enum import Enum

# The reason of a discriminator that reads images only.
NO_PROMPT_HEAD = "NO_PROMPT_HEAD"
# The confidence threshold of discriminators that recommend none.
DEFAULT_THRESHOLD = 0.5


class Verdict(Enum):
    """`HARD` prompts can skip the light stage; `EASY` ones need no score."""

    UNSURE = "unsure"
    HARD = "hard"
    EASY = "easy"


@dataclass(frozen=True)
class PromptForesight:
    """The probability, 0..1, that the light image will be as good as the heavy one, and the verdict.

    The verdict holds at the confidence threshold `threshold`: a hard prompt's image would surely be deferred there, and
    at any higher one; an easy prompt's surely accepted, and at any lower one.
    """

    probability: float
    verdict: Verdict = Verdict.UNSURE
    threshold: float = DEFAULT_THRESHOLD
