"""Compute the figures of `benchmarks.cache_value`: throughput against vanilla's and the log's ceiling, quality by the
gate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.report import Figure, Target, at_least, at_most, informative, measured
from benchmarks.reuse_ceiling import GenerationCosts, LogStart
from benchmarks.reuse_quality import Distances, QualityGate, ScoredImages, attribute_pairs
from benchmarks.statistics import ratio_of_sums
from zoo.evaluate.examination import COLUMNS

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
    """Yield the two Fréchet figures; the samples are the distances of our images, the seeds and all-light."""
    samples = [distances.ours, distances.seeds, distances.light]
    seeds = informative() if gate.seeds_share is None else at_most(gate.seeds_share)
    light = informative() if gate.light_share is None else at_most(gate.light_share)
    yield Figure(f"{name}: Fréchet distance ÷ that of vanilla's two seeds", distances.of_seeds, seeds, samples, None)
    yield Figure(f"{name}: Fréchet excess ÷ all-light's", distances.of_light, light, samples, None)


def failing_control(name: str, figures: Sequence[Figure]) -> Figure:
    """Return the number of gate figures that a control fails: at least one, or the gate shows nothing. The samples have
    their names and values."""
    failed = [[figure.name, figure.value] for figure in figures if not figure.ok]
    return Figure(f"{name}: figures of the gate that it fails", len(failed), at_least(1), failed, None)
