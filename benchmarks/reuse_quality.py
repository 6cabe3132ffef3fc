"""Compare images from reuse with those of the heavy model from scratch, and test them against the quality gate.

Everything is arithmetic over scores: rows are requests, the same ones in the same order for every set. The Fréchet
distance is FID's (Heusel et al. 2017) over another network's features. With a few hundred images it uses projections
onto the directions of vanilla's largest variance, since so few cannot estimate a covariance of more features.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.reuse_ceiling import GenerationCosts, LogStart
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, Target, at_least, at_most, informative, measured
from zoo.evaluate.examination import COLUMNS

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

DIRECTIONS_COUNT = 32


@dataclass(frozen=True)
class ScoredImages:
    """Hold the scores of a set of images.

    `scores` (n,): cosines of image and prompt by an encoder that neither routes nor was trained with the router's;
    `routing_scores` (n,): the same by the encoder that the cache searches by; `right` and `asked` (n, attributes):
    correct and requested attributes; `features` (n, d): the attribute scorer's.
    """

    scores: Array
    routing_scores: Array
    right: Flags
    asked: Flags
    features: Array


@dataclass(frozen=True)
class QualityGate:
    """Bound a set of images: minimum shares of vanilla's scores and correct attributes, and a maximum Fréchet distance.

    The distance from vanilla's images is at most `seeds_share` of the distance between vanilla's seeds, or exceeds that
    by at most `light_share` of all-light's excess over it.
    """

    score: float
    attribute: float = 0.95
    seeds_share: float | None = None
    light_share: float | None = None


LATENTS_GATE = QualityGate(0.95, seeds_share=1.0)
IMAGES_GATE = QualityGate(0.98, light_share=0.5)
BOTH_GATE = QualityGate(0.95, light_share=0.5)


def attribute_pairs(
    ours: ScoredImages, vanilla: ScoredImages, columns: Mapping[str, Sequence[int]]
) -> dict[str, list[tuple[int, int]]]:
    """Return, for each requested attribute, a pair per request: how many of its kind are right in our image, and in
    vanilla's."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, chosen in columns.items():
        rows = np.flatnonzero(ours.asked[:, chosen].any(axis=1))
        counts = zip(ours.right[rows][:, chosen].sum(axis=1), vanilla.right[rows][:, chosen].sum(axis=1), strict=True)
        if len(rows):
            found[name] = [(int(own), int(theirs)) for own, theirs in counts]
    return found


@dataclass(frozen=True)
class FeatureSpace:
    """Hold directions (d, k) of features about their mean (d,)."""

    mean: Array
    directions: Array

    @classmethod
    def of(cls, features: Array, count: int = DIRECTIONS_COUNT) -> "FeatureSpace":
        """Return the `count` directions of the features' (n, d) largest variance."""
        mean = features.mean(axis=0)
        _, _, directions = np.linalg.svd(features - mean, full_matrices=False)
        return cls(mean, directions[:count].T)

    def distance(self, ours: Array, theirs: Array) -> float:
        """Return the Fréchet distance of two sets of features (n, d), within these directions."""
        return frechet_distance((ours - self.mean) @ self.directions, (theirs - self.mean) @ self.directions)


def frechet_distance(ours: Array, theirs: Array) -> float:
    """Return |m − m'|² + tr(C + C' − 2 (C C')^½) of two sets of vectors (n, k), as if each were normal."""
    apart = ours.mean(axis=0) - theirs.mean(axis=0)
    own, other = (np.cov(vectors, rowvar=False) for vectors in (ours, theirs))
    values, vectors = np.linalg.eigh(own)
    root = vectors * np.sqrt(np.clip(values, 0.0, None)) @ vectors.T
    # The eigenvalues of C^½ C' C^½ are those of C C', and it is symmetric.
    mixed = np.sqrt(np.clip(np.linalg.eigvalsh(root @ other @ root), 0.0, None)).sum()
    return float(max(apart @ apart + np.trace(own) + np.trace(other) - 2.0 * mixed, 0.0))


@dataclass(frozen=True)
class Distances:
    """Hold Fréchet distances from vanilla's images: our images', vanilla's with other seeds, the light model's."""

    ours: float
    seeds: float
    light: float

    @property
    def of_seeds(self) -> float:
        """Return ours as a share of the distance between vanilla's seeds."""
        return self.ours / self.seeds

    @property
    def of_light(self) -> float | None:
        """Return our excess over the seeds' distance as a share of the light model's; None if that has none."""
        excess = self.light - self.seeds
        return max(self.ours - self.seeds, 0.0) / excess if excess > 0 else None


OF_CEILING = 0.85


@dataclass(frozen=True)
class ArmRounds:
    """Hold each round's seconds: an arm's, and vanilla's and all-light's of the same round.

    `counts` are requests. `starts` are the starts that the log's hits allow if requests in flight cannot be found,
    `instant_starts` those if everything were instantaneous.
    """

    name: str
    arm_s: Sequence[float]
    vanilla_s: Sequence[float]
    light_s: Sequence[float]
    counts: Sequence[int]
    starts: Sequence[Sequence[LogStart]]
    instant_starts: Sequence[Sequence[LogStart]]
    heavy_steps: int
    light_steps: int

    @property
    def costs(self) -> GenerationCosts:
        """Return the seconds a step over all rounds: vanilla's and all-light's."""
        count = sum(self.counts)
        return step_costs(sum(self.vanilla_s), sum(self.light_s), count, self.heavy_steps, self.light_steps)

    def against_vanilla(self) -> list[tuple[float, float]]:
        """Return vanilla's seconds and the arm's, by round."""
        return list(zip(self.vanilla_s, self.arm_s, strict=True))

    def against_ceiling(self, starts_of_rounds: Sequence[Sequence[LogStart]]) -> list[tuple[float, float]]:
        """Return by round the starts' seconds, at that round's costs, and the arm's seconds."""
        pairs = []
        for number, starts in enumerate(starts_of_rounds):
            seconds = self.vanilla_s[number], self.light_s[number]
            costs = step_costs(*seconds, self.counts[number], self.heavy_steps, self.light_steps)
            pairs.append((sum(start.cost_s(costs) for start in starts), self.arm_s[number]))
        return pairs


def step_costs(vanilla_s: float, light_s: float, count: int, heavy_steps: int, light_steps: int) -> GenerationCosts:
    """Return seconds a step, from each model's seconds for `count` images from noise."""
    return GenerationCosts(heavy_steps, light_steps, vanilla_s / (count * heavy_steps), light_s / (count * light_steps))


def throughput_figures(where: str, rounds: ArmRounds, of_vanilla: Target, of_ceiling: Target) -> Iterator[Figure]:
    """Yield an arm's throughput ÷ vanilla's, and ÷ the log's ceiling, without and with requests in flight.

    A sample is a round's two times in seconds, vanilla's or the ceiling's first.
    """
    name = f"{where}, {rounds.name}"
    yield measured(f"{name}: throughput ÷ vanilla's", rounds.against_vanilla(), ratio_of_sums, of_vanilla)
    ceiling = rounds.against_ceiling(rounds.starts)
    yield measured(f"{name}: throughput ÷ the ceiling of the log's hits", ceiling, ratio_of_sums, of_ceiling)
    instant = rounds.against_ceiling(rounds.instant_starts)
    told = f"{name}: throughput ÷ that ceiling, were every picture there at once"
    yield measured(told, instant, ratio_of_sums, informative())


def score_figure(name: str, ours: ScoredImages, vanilla: ScoredImages, target: Target) -> Figure:
    """Return the CLIPScore by the encoder that does not route, ÷ vanilla's of the same requests."""
    pairs = [
        (round(float(own), 4), round(float(other), 4)) for own, other in zip(ours.scores, vanilla.scores, strict=True)
    ]
    return measured(name, pairs, ratio_of_sums, target)


def quality_figures(
    name: str, ours: ScoredImages, vanilla: ScoredImages, distances: Distances, gate: QualityGate
) -> Iterator[Figure]:
    """Yield every figure of the gate, and the related ones without a target."""
    yield from image_figures(name, ours, vanilla, gate)
    yield from distance_figures(name, distances, gate)


def image_figures(name: str, ours: ScoredImages, vanilla: ScoredImages, gate: QualityGate) -> Iterator[Figure]:
    """Yield the gate's figures of single images against vanilla's of the same requests: scores and attributes."""
    yield score_figure(f"{name}: CLIPScore ÷ vanilla's", ours, vanilla, at_least(gate.score))
    routing = [
        (round(float(own), 4), round(float(other), 4))
        for own, other in zip(ours.routing_scores, vanilla.routing_scores, strict=True)
    ]
    yield measured(f"{name}: CLIPScore by the routing encoder ÷ vanilla's", routing, ratio_of_sums, informative())
    for attribute, pairs in attribute_pairs(ours, vanilla, COLUMNS).items():
        if sum(theirs for _, theirs in pairs):
            yield measured(f"{name}: {attribute} right ÷ vanilla's", pairs, _attribute_ratio, at_least(gate.attribute))


def _attribute_ratio(pairs: Sequence[tuple[int, int]]) -> float:
    """A resample may have nothing right in vanilla's images: then ours is no worse."""
    return ratio_of_sums(pairs) if any(theirs for _, theirs in pairs) else 1.0


def distance_figures(name: str, distances: Distances, gate: QualityGate) -> Iterator[Figure]:
    """Yield the two Fréchet figures."""
    seeds = informative() if gate.seeds_share is None else at_most(gate.seeds_share)
    light = informative() if gate.light_share is None else at_most(gate.light_share)
    yield Figure(f"{name}: Fréchet distance ÷ that of vanilla's two seeds", distances.of_seeds, seeds)
    yield Figure(f"{name}: Fréchet excess ÷ all-light's", distances.of_light, light)


def failing_control(name: str, figures: Sequence[Figure]) -> Figure:
    """Return the number of gate figures that a control fails: at least one, or the gate shows nothing."""
    failed = sum(not figure.ok for figure in figures)
    return Figure(f"{name}: figures of the gate that it fails", failed, at_least(1), len(figures))
