"""The whole study of one log: the measures of NIRVANA (section 3) and MoDM (section 5.4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.studies.changes import AttributeChanges, attribute_changes
from lab.studies.longevity import DistinctPrompts, Longevity, WindowClusters, cluster_longevity
from lab.studies.neighbours import Vectors
from lab.studies.prompt_log import PromptLog
from lab.studies.reuse import NIRVANA_SAVINGS, AgePoint, Ceiling, LogReuse, SavingsTable, SizePoint, ceiling
from lab.studies.sessions import SessionSimilarity, rows_by_user, session_similarity
from pentimento.domain.errors import InvalidArgument

SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
AGES_S = (60.0, 600.0, 3_600.0, 14_400.0, 86_400.0, 604_800.0)


@dataclass(frozen=True)
class StudySettings:
    """`window_s`: a window of the clusters, the paper's day. A log without times has windows of `window_prompts`; None
    makes ten of it. `eps` and `top_percents` are the paper's, `min_samples` is scikit-learn's default: the paper is
    silent about it. `warm_up`: the first prompts, which are in the caches and count for nothing."""

    table: SavingsTable = NIRVANA_SAVINGS
    warm_up: int = 0
    window_s: float = 86_400.0
    window_prompts: int | None = None
    eps: tuple[float, ...] = (0.01, 0.1, 0.2, 0.5)
    top_percents: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0)
    min_samples: int = 5
    session_s: float = 3_600.0
    other_users: int = 100
    seed: int = 0


@dataclass(frozen=True)
class TraceStudy:
    """A study. `duration_s`, `user_count`, `by_age_s` and `sessions` are None if the log has no times or users.
    `exact_repeat_share` counts prompts with an earlier equal text. `by_age_prompts` counts ages in prompts. A prompt
    is short up to `short_words` words."""

    name: str
    provenance: Mapping[str, Any]
    settings: StudySettings
    prompt_count: int
    distinct_count: int
    user_count: int | None
    duration_s: float | None
    exact_repeat_share: float
    nearest_shares: tuple[float, ...]
    ceiling: Ceiling
    by_size: tuple[SizePoint, ...]
    by_age_prompts: tuple[AgePoint, ...]
    by_age_s: tuple[AgePoint, ...] | None
    windows: tuple[WindowClusters, ...]
    longevity: tuple[Longevity, ...]
    short_words: float
    changes: tuple[AttributeChanges, ...]
    sessions: SessionSimilarity | None = field(default=None)


@dataclass(frozen=True)
class _OrderedLog:
    """A log by time, with the vectors of its prompts."""

    prompts: tuple[str, ...]
    vectors: Vectors
    at_s: npt.NDArray[np.float64] | None
    users: tuple[str, ...] | None


def make_study(
    log: PromptLog, vectors: Vectors, settings: StudySettings, provenance: Mapping[str, Any] | None = None
) -> TraceStudy:
    """Return the study of a log; `vectors` (n, width) are of unit length, in the log's own order. InvalidArgument where
    they, or the warm-up, do not fit the log."""
    _check(log, vectors, settings)
    ordered = _ordered(log, vectors)
    reuse = LogReuse.of(ordered.vectors, settings.table, settings.warm_up)
    rows = None if ordered.users is None else list(rows_by_user(ordered.users).values())
    sizes = [size for size in SIZES if size < len(ordered.prompts)]
    windows, longevity = _longevity(ordered, settings)
    changes, short_words = attribute_changes(ordered.prompts, reuse.neighbours, settings.warm_up)
    return TraceStudy(
        name=log.name,
        provenance={"composite": log.composite, **(provenance or {})},
        settings=settings,
        prompt_count=len(ordered.prompts),
        distinct_count=len(set(ordered.prompts)),
        user_count=None if rows is None else len(rows),
        duration_s=None if ordered.at_s is None else float(ordered.at_s[-1] - ordered.at_s[0]),
        exact_repeat_share=_repeats(ordered.prompts, settings.warm_up),
        nearest_shares=tuple(reuse.nearest_at_least(rule.min_similarity) for rule in settings.table),
        ceiling=ceiling(ordered.vectors, reuse, rows),
        by_size=reuse.sizes(sizes),
        by_age_prompts=reuse.ages([float(size) for size in sizes], None),
        by_age_s=None if ordered.at_s is None else reuse.ages(AGES_S, ordered.at_s),
        windows=windows,
        longevity=longevity,
        short_words=short_words,
        changes=changes,
        sessions=_sessions(ordered, settings),
    )


def _check(log: PromptLog, vectors: Vectors, settings: StudySettings) -> None:
    if len(vectors) != len(log.prompts):
        raise InvalidArgument.of(
            "embeddings", f"must be one for each of {len(log.prompts)} prompts, got {len(vectors)}"
        )
    if not 0 <= settings.warm_up < len(log.prompts):
        limit = f"must be at least 0 and below the number of prompts, {len(log.prompts)}, got {settings.warm_up}"
        raise InvalidArgument.of("warm-up", limit)
    _check_positive("window-s", settings.window_s)
    _check_positive("session-s", settings.session_s)
    if settings.window_prompts is not None:
        _check_positive("window-prompts", settings.window_prompts)


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < np.inf:
        raise InvalidArgument.of(name, f"must be above 0 and finite, got {value:g}")


def _ordered(log: PromptLog, vectors: Vectors) -> _OrderedLog:
    order = log.in_order()
    return _OrderedLog(
        prompts=tuple(log.prompts[row] for row in order),
        vectors=_in_order(vectors, order),
        at_s=None if log.at_s is None else log.at_s[order],
        users=None if log.users is None else tuple(log.users[row] for row in order),
    )


def _in_order(vectors: Vectors, order: npt.NDArray[np.int64]) -> Vectors:
    """The vectors themselves where the log is in order: they are the largest thing there is."""
    in_order = np.array_equal(order, np.arange(len(order)))
    return np.ascontiguousarray(vectors if in_order else vectors[order], np.float32)


def _repeats(prompts: Sequence[str], warm_up: int) -> float:
    seen: set[str] = set()
    again = []
    for prompt in prompts:
        again.append(prompt in seen)
        seen.add(prompt)
    return float(np.mean(again[warm_up:]))


def _longevity(log: _OrderedLog, settings: StudySettings) -> tuple[tuple[WindowClusters, ...], tuple[Longevity, ...]]:
    windows = [DistinctPrompts.of(log.prompts, rows) for rows in _windows(log, settings)]
    found = [
        cluster_longevity(log.vectors, windows, eps, settings.top_percents, settings.min_samples)
        for eps in settings.eps
    ]
    return tuple(one for seen, _ in found for one in seen), tuple(row for _, rows in found for row in rows)


def _windows(log: _OrderedLog, settings: StudySettings) -> list[npt.NDArray[np.int64]]:
    """Rows of each window with a prompt in it. Windows begin with the first prompt."""
    count = len(log.prompts)
    if log.at_s is not None:
        numbers = np.floor((log.at_s - log.at_s[0]) / settings.window_s)
    else:
        numbers = np.arange(count) // (settings.window_prompts or -(-count // 10))
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def _sessions(log: _OrderedLog, settings: StudySettings) -> SessionSimilarity | None:
    if log.users is None or log.at_s is None:
        return None
    return session_similarity(log.vectors, log.users, log.at_s, settings.session_s, settings.other_users, settings.seed)
