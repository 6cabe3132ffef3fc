"""Count the changes between a prompt and the nearest one before it (NIRVANA, section 3, figure 6).

Changes are counted in words, colours and numbers. The paper also counts nouns, adjectives and verbs, which takes a
tagger.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lab.studies.neighbours import NOBODY, TIE, EarlierNeighbours

# The paper's bounds between very low, low, medium and high similarity, and where short prompts end.
SIMILARITY_BOUNDS = (-1.0, 0.65, 0.8, 0.9, 1.0)
SHORT_QUANTILE = 0.7
# fmt: off
COLOURS = frozenset((
    "beige", "black", "blue", "brown", "crimson", "cyan", "gold", "golden", "gray", "green", "grey", "indigo", "ivory",
    "lavender", "magenta", "maroon", "orange", "pink", "purple", "red", "scarlet", "silver", "teal", "turquoise",
    "violet", "white", "yellow",
))
NUMBERS = frozenset((
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "dozen",
    "hundred", "thousand",
))
# fmt: on
WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class AttributeChanges:
    """Means over pairs of a prompt and its nearest earlier one of another text, at a similarity from `from_similarity`
    up to `to_similarity`. A word that took another's place is one change. Means are None without a pair."""

    is_long: bool
    from_similarity: float
    to_similarity: float
    pair_count: int
    words: float | None
    colours: float | None
    numbers: float | None


def attribute_changes(
    prompts: Sequence[str], neighbours: EarlierNeighbours, warm_up: int = 0
) -> tuple[tuple[AttributeChanges, ...], float]:
    """Return a row for short and long prompts and each bucket of similarity, and the largest number of words of a short
    prompt."""
    words = [Counter(WORD.findall(prompt.lower())) for prompt in prompts]
    lengths = np.asarray([sum(found.values()) for found in words])
    limit = float(np.quantile(lengths, SHORT_QUANTILE))
    pairs = [
        (row, int(donor))
        for row, donor in enumerate(neighbours.donor)
        if row >= warm_up and donor != NOBODY and prompts[row] != prompts[donor]
    ]
    rows = []
    for is_long in (False, True):
        for low, high in pairwise(SIMILARITY_BOUNDS):
            inside = [
                (words[row], words[donor])
                for row, donor in pairs
                if (lengths[row] > limit) == is_long and _is_between(float(neighbours.similarity[row]), low, high)
            ]
            rows.append(_means(is_long, low, high, inside))
    return tuple(rows), limit


def _is_between(similarity: float, low: float, high: float) -> bool:
    """Cosines may leave -1..1 by rounding."""
    return (low == -1.0 or similarity >= low - TIE) and (high == 1.0 or similarity < high - TIE)


def _means(
    is_long: bool, low: float, high: float, pairs: Sequence[tuple[Counter[str], Counter[str]]]
) -> AttributeChanges:
    return AttributeChanges(
        is_long=is_long,
        from_similarity=low,
        to_similarity=high,
        pair_count=len(pairs),
        words=_mean(_changes(one, other) for one, other in pairs),
        colours=_mean(_changes(_among(one, COLOURS), _among(other, COLOURS)) for one, other in pairs),
        numbers=_mean(_changes(_numbers(one), _numbers(other)) for one, other in pairs),
    )


def _changes(one: Counter[str], other: Counter[str]) -> int:
    return max((one - other).total(), (other - one).total())


def _among(words: Counter[str], known: frozenset[str]) -> Counter[str]:
    return Counter({word: count for word, count in words.items() if word in known})


def _numbers(words: Counter[str]) -> Counter[str]:
    return Counter({word: count for word, count in words.items() if word in NUMBERS or word.isdecimal()})


def _mean(values: Iterable[int]) -> float | None:
    found = list(values)
    return float(np.mean(found)) if found else None
