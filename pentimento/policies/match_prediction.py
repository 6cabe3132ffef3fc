"""Decide whether a search of the cache is worth its time: pure part of the match predictor (NIRVANA, section 5.2).

A scorer estimates how likely a near enough entry is; higher is likelier. Searched lookups calibrate the scores:
`calibrate` chooses the score below which searches are skipped, for the best expected net latency:
searches saved * l_s - forgone K/N * C - the predictor's own time. NIRVANA's account omits the forgone part.

A share of the lookups that would be skipped is searched anyway (*audited*), to estimate forgone hits.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from enum import Enum
from operator import add

# A bound holds with probability 0.9; the account of net latency catches the other cases.
_DOUBT = math.log(1 / 0.1)
# Share of the unlikely lookups that is audited; the newest outcomes that a gate stores; lookups in the recent account.
AUDIT_SHARE, REMEMBERED_COUNT, ACCOUNT_COUNT = 0.1, 2048, 2048


class Ruling(Enum):
    """Decide one lookup. `AUDIT` is searched although a match is unlikely, to measure what skips forgo."""

    SEARCH = "search"
    SKIP = "skip"
    AUDIT = "audit"


@dataclass(frozen=True)
class SearchOutcome:
    """Hold the result of a search: its score, and the K/N that its start saves (0 for a miss). `weight` is the number
    of lookups that it represents."""

    score: float
    saved_share: float
    weight: float = 1.0


@dataclass(frozen=True)
class LookupPrices:
    """Hold the seconds of a search (l_s), of an image from noise (C), and of one prediction."""

    search_s: float
    generation_s: float
    prediction_s: float


@dataclass(frozen=True)
class SkipThreshold:
    """Skip scores below `threshold`. Seconds gained per lookup: expected, and at least (with probability 0.9)."""

    threshold: float
    expected_s: float
    at_least_s: float


@dataclass(frozen=True)
class NetLatency:
    """Account for the gains of skipping, in lookups and seconds. Forgone seconds are estimated from the audits."""

    lookup_count: float = 0.0
    skipped_count: float = 0.0
    saved_s: float = 0.0
    forgone_s: float = 0.0
    prediction_s: float = 0.0

    @property
    def net_s(self) -> float:
        """Return the seconds gained; negative is a loss."""
        return self.saved_s - self.forgone_s - self.prediction_s

    def plus(self, other: "NetLatency") -> "NetLatency":
        """Return the sum of both accounts."""
        return NetLatency(*map(add, astuple(self), astuple(other)))

    def scaled(self, factor: float) -> "NetLatency":
        """Return the account of `factor` times the lookups."""
        return NetLatency(*(factor * part for part in astuple(self)))


class MatchGate:
    """Rule on lookups by their score, only while that gains time.

    The gate switches on if the calibration's lower bound is above zero, and off if its expected value or the account is
    not; in between it stays unchanged. All methods but `rule` change state. Not thread-safe.
    """

    def __init__(self, needed_count: int = 256, recall: float | None = None) -> None:
        """Create a gate that switches on after `needed_count` new outcomes, at first and after switching off. With a
        `recall` it keeps that share of the hits and stays on, regardless of the gain."""
        self._needed_count = needed_count
        self._recall = recall
        self._outcomes: deque[SearchOutcome] = deque(maxlen=REMEMBERED_COUNT)
        # None while the gate is off.
        self.calibration: SkipThreshold | None = None
        self._fresh_count = 0
        self._recent = NetLatency()
        # Why the gate is on or off, by the last review.
        self.why = "no search compared yet"
        self.total = NetLatency()

    @property
    def on(self) -> bool:
        """Return whether lookups are skipped."""
        return self.calibration is not None

    @property
    def outcomes(self) -> tuple[SearchOutcome, ...]:
        """Return the remembered outcomes, oldest first."""
        return tuple(self._outcomes)

    def rule(self, score: float, draw: float) -> Ruling:
        """Return the ruling on a lookup; `draw` (uniform in 0..1) decides whether an unlikely one is audited."""
        if self.calibration is None or score >= self.calibration.threshold:
            return Ruling.SEARCH
        return Ruling.AUDIT if draw < AUDIT_SHARE else Ruling.SKIP

    def note_skipped(self, prices: LookupPrices) -> None:
        """Account for a skipped lookup."""
        self._book(NetLatency(1, 1, prices.search_s, 0.0, prices.prediction_s))

    def note_searched(self, ruling: Ruling, score: float, saved_share: float, prices: LookupPrices) -> None:
        """Account for a searched lookup and learn from it; `saved_share` is K/N of its start, 0 for a miss."""
        audits = 1 / AUDIT_SHARE
        weight = audits if ruling is Ruling.AUDIT else 1.0
        self.remember([SearchOutcome(score, saved_share, weight)])
        if self.on:
            # An audit represents the skipped lookups around it, and loses nothing itself.
            forgone_s = (weight - 1) * saved_share * prices.generation_s
            self._book(NetLatency(1, 0, 0.0, forgone_s, prices.prediction_s))

    def remember(self, outcomes: Iterable[SearchOutcome]) -> None:
        """Learn from outcomes without accounting for them: outcomes of a disabled scorer or an earlier process."""
        for outcome in outcomes:
            self._outcomes.append(outcome)
            self._fresh_count += 1

    def review(self, prices: LookupPrices) -> None:
        """Calibrate again and switch on or off. O(n log n) in the remembered outcomes: not for every lookup."""
        if self._recall is not None:
            self._keep_recall(self._recall)
        elif self.calibration is None:
            self._switch_on(prices)
        elif self._loses(prices):
            self._switch_off()
        else:
            self.calibration = calibrate(self._outcomes, prices) or self.calibration

    def _keep_recall(self, recall: float) -> None:
        self.why = self._compared(len(self._outcomes))
        if len(self._outcomes) >= self._needed_count:
            self.why = f"always on, at a recall of {recall:g}"
            self.calibration = SkipThreshold(threshold_for_recall(self._outcomes, recall), math.nan, math.nan)

    def _switch_on(self, prices: LookupPrices) -> None:
        if self._fresh_count < self._needed_count:
            self.why = self._compared(self._fresh_count)
            return
        found = calibrate(self._outcomes, prices)
        self.why = _gain(found)
        if found is not None and found.at_least_s > 0:
            self.calibration, self._recent = found, NetLatency()

    def _switch_off(self) -> None:
        self.calibration, self._fresh_count = None, 0

    def _loses(self, prices: LookupPrices) -> bool:
        recent = self._recent
        if recent.lookup_count >= self._needed_count / 4 and recent.net_s <= 0:
            lost_ms = -1000 * recent.net_s / recent.lookup_count
            self.why = f"skipping lost {lost_ms:.2f} ms a lookup, off until more searches are compared"
            return True
        best = calibrate(self._outcomes, prices)
        self.why = _gain(best)
        return best is None or best.expected_s <= 0

    def _compared(self, count: int) -> str:
        return f"{count} of {self._needed_count} searches compared"

    def _book(self, entry: NetLatency) -> None:
        self.total = self.total.plus(entry)
        self._recent = self._recent.plus(entry)
        if self._recent.lookup_count >= ACCOUNT_COUNT:
            self._recent = self._recent.scaled(0.5)


def _gain(found: SkipThreshold | None) -> str:
    if found is None:
        return "scores do not tell hits from misses"
    expected_ms, surely_ms = 1000 * found.expected_s, 1000 * found.at_least_s
    return f"skipping would gain {expected_ms:.2f} ms a lookup, at least {surely_ms:.2f} ms"


def threshold_for_recall(outcomes: Iterable[SearchOutcome], recall: float) -> float:
    """Return the highest threshold that keeps at least `recall` of the hits; minus infinity without hits."""
    hits = sorted(((each.score, each.weight) for each in outcomes if each.saved_share > 0), reverse=True)
    wanted = recall * math.fsum(weight for _, weight in hits)
    kept = 0.0
    for score, weight in hits:
        kept += weight
        if kept >= wanted - 1e-9:
            return score
    return -math.inf


def calibrate(outcomes: Iterable[SearchOutcome], prices: LookupPrices) -> SkipThreshold | None:
    """Return the threshold with the best lower bound of the gain; None if all scores are equal."""
    ranked = sorted(outcomes, key=lambda outcome: outcome.score)
    smallest = min((each.saved_share for each in ranked if each.saved_share > 0), default=1.0)
    total = math.fsum(each.weight for each in ranked)
    zone = _Zone(smallest)
    best: SkipThreshold | None = None
    for outcome, following in itertools.pairwise(ranked):
        zone.add(outcome)
        if following.score > outcome.score:
            found = zone.calibration(following.score, total, prices)
            best = found if best is None or found.at_least_s > best.at_least_s else best
    return best


class _Zone:
    """Sum up the outcomes below a threshold: the mean of their K/N, and an upper bound of it."""

    def __init__(self, smallest_share: float) -> None:
        self._largest_share = smallest_share
        self._weight = self._weight_squares = self._shares = self._share_squares = 0.0

    def add(self, outcome: SearchOutcome) -> None:
        weight, share = outcome.weight, outcome.saved_share
        self._weight += weight
        self._weight_squares += weight * weight
        self._shares += weight * share
        self._share_squares += weight * share * share
        self._largest_share = max(self._largest_share, share)

    def calibration(self, threshold: float, total_weight: float, prices: LookupPrices) -> SkipThreshold:
        mean, bound = self._mean_share(), self._bound()
        skipped = self._weight / total_weight
        expected_s = skipped * (prices.search_s - mean * prices.generation_s) - prices.prediction_s
        at_least_s = skipped * (prices.search_s - bound * prices.generation_s) - prices.prediction_s
        return SkipThreshold(threshold, expected_s, at_least_s)

    def _mean_share(self) -> float:
        return self._shares / self._weight

    def _bound(self) -> float:
        """Return the empirical Bernstein bound (Maurer and Pontil, 2009): variance, plus a hit not seen yet."""
        count = self._weight * self._weight / self._weight_squares
        variance = max(0.0, self._share_squares / self._weight - self._mean_share() ** 2)
        unseen = 7 * self._largest_share * _DOUBT / (3 * max(count - 1, 1e-9))
        return self._mean_share() + math.sqrt(2 * variance * _DOUBT / count) + unseen
