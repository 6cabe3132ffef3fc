"""Compare the prompts of a user within a session, between sessions, and with other users' (NIRVANA, figure 7).

A mean over all pairs of unit vectors needs only their sum: |sum|^2 = n + 2 * (sum over pairs). The work is therefore
not quadratic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.studies.neighbours import Indices, Vectors

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
Sums = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SimilaritySpread:
    """Over users, of each one's mean cosine over pairs; `quantiles` at QUANTILES. All None where no user has a pair."""

    user_count: int
    mean: float | None
    quantiles: tuple[float, ...] | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "SimilaritySpread":
        """Return the spread of a value a user."""
        if not values:
            return cls(0, None, None)
        found = tuple(float(value) for value in np.quantile(values, QUANTILES))
        return cls(len(values), float(np.mean(values)), found)


@dataclass(frozen=True)
class SessionSimilarity:
    """Similarities of pairs: `within` one session, `between` different sessions of one user, `across` a user and up to
    `other_users` others, drawn for each user. A session is `session_s` seconds, counted from the user's first
    prompt."""

    session_s: float
    session_count: int
    other_users: int
    within: SimilaritySpread
    between: SimilaritySpread
    across: SimilaritySpread


@dataclass(frozen=True)
class _User:
    """`total` is the sum of all the user's vectors; `squared_counts` and `squared_totals` are sums over sessions of the
    squares of their counts and of the lengths of their totals."""

    count: int
    session_count: int
    total: Sums
    squared_counts: int
    squared_totals: float


def session_similarity(
    vectors: Vectors, users: Sequence[str], at_s: npt.NDArray[np.float64], session_s: float, other_users: int, seed: int
) -> SessionSimilarity:
    """Return the three spreads over the users of n prompts; `other_users` are drawn by `seed`."""
    found = [_user(vectors[rows], at_s[rows], session_s) for rows in rows_by_user(users).values()]
    return SessionSimilarity(
        session_s=session_s,
        session_count=sum(user.session_count for user in found),
        other_users=other_users,
        within=SimilaritySpread.of([value for user in found if (value := _within(user)) is not None]),
        between=SimilaritySpread.of([value for user in found if (value := _between(user)) is not None]),
        across=SimilaritySpread.of(_across(found, other_users, np.random.default_rng(seed))),
    )


def rows_by_user(users: Sequence[str]) -> Mapping[str, Indices]:
    """Return the rows of each user, in order; users in the order of their first row."""
    rows: dict[str, list[int]] = {}
    for row, user in enumerate(users):
        rows.setdefault(user, []).append(row)
    return {user: np.asarray(found, np.int64) for user, found in rows.items()}


def _user(vectors: Vectors, at_s: npt.NDArray[np.float64], session_s: float) -> _User:
    numbers = np.floor((at_s - at_s.min()) / session_s)
    parts = [vectors[numbers == number].astype(np.float64) for number in np.unique(numbers)]
    totals = [part.sum(axis=0) for part in parts]
    return _User(
        count=len(vectors),
        session_count=len(parts),
        total=np.asarray(np.sum(totals, axis=0), np.float64),
        squared_counts=sum(len(part) ** 2 for part in parts),
        squared_totals=sum(float(total @ total) for total in totals),
    )


def _within(user: _User) -> float | None:
    """Mean over the pairs of all sessions; None without any."""
    pairs = (user.squared_counts - user.count) / 2
    return (user.squared_totals - user.count) / 2 / pairs if pairs else None


def _between(user: _User) -> float | None:
    pairs = (user.count**2 - user.squared_counts) / 2
    together = (float(user.total @ user.total) - user.squared_totals) / 2
    return together / pairs if pairs else None


def _across(users: Sequence[_User], other_users: int, random: np.random.Generator) -> list[float]:
    if len(users) < 2:
        return []
    counts = np.asarray([user.count for user in users], np.float64)
    totals = np.stack([user.total for user in users])
    values = []
    for one in range(len(users)):
        others = random.choice(len(users) - 1, min(other_users, len(users) - 1), replace=False)
        others = others + (others >= one)
        values.append(float(totals[others].sum(axis=0) @ totals[one] / (counts[others].sum() * counts[one])))
    return values
