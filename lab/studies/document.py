"""A study as JSON and as text. Neither holds a prompt."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from lab.runs.text import Row, table
from lab.studies.sessions import QUANTILES, SimilaritySpread
from lab.studies.study import TraceStudy

FORMAT = 1


def study_as_json(study: TraceStudy) -> str:
    """Return everything, keys as the fields are called; null is what the log does not allow to measure."""
    return json.dumps({"format": FORMAT, **asdict(study)}, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def study_as_text(study: TraceStudy) -> str:
    """Return the tables of a study for a terminal."""
    reuse = [_summary(study), _sizes(study), _ages(study)]
    tables = [*reuse, _windows(study), _longevity(study), _sessions(study), _changes(study)]
    return "\n".join(table(rows) for rows in tables if rows)


def _summary(study: TraceStudy) -> list[Row]:
    reach = [
        (f"earlier prompt at {rule.min_similarity:g} or more", _share(share))
        for rule, share in zip(study.settings.table, study.nearest_shares, strict=True)
    ]
    ceiling = study.ceiling
    return [
        ("log", study.name + (" (composite)" if study.provenance.get("composite") else "")),
        ("prompts", f"{study.prompt_count} ({study.distinct_count} distinct), warm-up {study.settings.warm_up}"),
        ("users", "not in the log" if study.user_count is None else str(study.user_count)),
        ("duration", "not in the log" if study.duration_s is None else f"{study.duration_s:.0f} s"),
        ("exact repeats", _share(study.exact_repeat_share)),
        *reach,
        ("steps saved without bounds", f"{_share(ceiling.saved_share)}, hit rate {_share(ceiling.hit_rate)}"),
        ("  misses alone enter", f"{_share(ceiling.saved_share_misses_only)}, {_share(ceiling.hit_rate_misses_only)}"),
        ("  users find their own alone", f"{_share(ceiling.saved_share_own)}, {_share(ceiling.hit_rate_own)}"),
    ]


def _sizes(study: TraceStudy) -> list[Row]:
    rules = [f">= {rule.min_similarity:g}" for rule in study.settings.table]
    rows: list[Row] = [("FIFO entries: hit rate", *rules, "steps saved")]
    for point in study.by_size:
        name = "no bounds" if point.entries is None else str(point.entries)
        rows.append((name, *map(_share, point.hit_rates), _share(point.saved_share)))
    return rows


def _ages(study: TraceStudy) -> list[Row]:
    rules = [f">= {rule.min_similarity:g}" for rule in study.settings.table]
    rows: list[Row] = [("donor up to: hit rate", *rules, "of hits, nearest donor")]
    for unit, points in (("prompts", study.by_age_prompts), ("s", study.by_age_s or ())):
        for point in points:
            rows.append((f"{point.age:g} {unit}", *map(_share, point.hit_rates), _share(point.donor_share)))
    return rows


def _windows(study: TraceStudy) -> list[Row]:
    """Means over windows, by eps."""
    rows: list[Row] = [("DBSCAN eps: means", "windows", "prompts", "clusters", "in clusters", "in the largest")]
    for eps in study.settings.eps:
        found = [window for window in study.windows if window.eps == eps]
        rows.append(
            (
                f"{eps:g}",
                str(len(found)),
                f"{_mean([window.prompt_count for window in found]):.0f}",
                f"{_mean([window.cluster_count for window in found]):.1f}",
                _share(_mean([window.clustered_share for window in found])),
                _share(_mean([window.largest_share for window in found])),
            )
        )
    return rows


def _longevity(study: TraceStudy) -> list[Row]:
    lags = sorted({row.lag for row in study.longevity})[:6]
    if not lags:
        return []
    found = {(row.eps, row.top_percent, row.lag): row for row in study.longevity}
    rows: list[Row] = [("still at the top after", *(f"{lag} windows" for lag in lags), "top clusters")]
    for eps in study.settings.eps:
        for percent in study.settings.top_percents:
            cells = [found[eps, percent, lag] for lag in lags]
            name = f"eps {eps:g}, top {percent:g} %"
            rows.append((name, *(_share(cell.share) for cell in cells), str(cells[0].base_count)))
    return rows


def _sessions(study: TraceStudy) -> list[Row]:
    if study.sessions is None:
        return []
    head = (f"cosine of pairs, sessions of {study.sessions.session_s:g} s", "users", "mean")
    rows: list[Row] = [(*head, *(f"p{100 * quantile:.0f}" for quantile in QUANTILES))]
    for name in ("within", "between", "across"):
        spread: SimilaritySpread = getattr(study.sessions, name)
        values = (spread.mean, *(spread.quantiles or [None] * len(QUANTILES)))
        rows.append((name, str(spread.user_count), *("–" if value is None else f"{value:.3f}" for value in values)))
    return rows


def _changes(study: TraceStudy) -> list[Row]:
    rows: list[Row] = [("changes to the nearest earlier prompt", "pairs", "words", "colours", "numbers")]
    for row in study.changes:
        length = f"{'over' if row.is_long else 'up to'} {study.short_words:g} words"
        values = (row.words, row.colours, row.numbers)
        cells = ("–" if value is None else f"{value:.2f}" for value in values)
        rows.append((f"{length}, {row.from_similarity:g} to {row.to_similarity:g}", str(row.pair_count), *cells))
    return rows


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
