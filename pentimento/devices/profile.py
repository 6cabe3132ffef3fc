"""What a model costs on a device: seconds of a denoising step at every batch size e(b), and memory, as measured.

`pentimento bench profile` writes it; the controller solves with it, the simulator and emulated devices live by it.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pentimento.domain.errors import InvalidArgument
from pentimento.files.documents import document_from_json, document_to_json, read_document
from pentimento.files.json_values import ValueRange

FORMAT = 1

Count = Annotated[int, ValueRange(1)]
Seconds = Annotated[float, ValueRange(0.0)]


@dataclass(frozen=True)
class Cost:
    """Seconds: mean and unbiased variance of `sample_count` measurements."""

    mean_s: Seconds
    variance_s2: Annotated[float, ValueRange(0.0)]
    sample_count: Count

    @staticmethod
    def of(samples_s: Sequence[float]) -> "Cost":
        """At least one sample."""
        count, mean = len(samples_s), math.fsum(samples_s) / len(samples_s)
        squares = math.fsum((sample - mean) ** 2 for sample in samples_s)
        return Cost(mean, squares / (count - 1) if count > 1 else 0.0, count)

    @staticmethod
    def pooled(costs: "Sequence[Cost]") -> "Cost":
        """As if all samples had been taken together; at least one cost."""
        count = sum(cost.sample_count for cost in costs)
        mean = math.fsum(cost.mean_s * cost.sample_count for cost in costs) / count
        squares = math.fsum(
            cost.variance_s2 * (cost.sample_count - 1) + cost.sample_count * (cost.mean_s - mean) ** 2 for cost in costs
        )
        return Cost(mean, squares / (count - 1) if count > 1 else 0.0, count)

    def between(self, other: "Cost", share: float) -> "Cost":
        """The Cost at `share` (0..1) of the straight line from here to `other`."""
        mean = self.mean_s + share * (other.mean_s - self.mean_s)
        variance = self.variance_s2 + share * (other.variance_s2 - self.variance_s2)
        return Cost(mean, variance, min(self.sample_count, other.sample_count))

    def times(self, factor: float) -> "Cost":
        """On a device that takes `factor` times as long."""
        return Cost(self.mean_s * factor, self.variance_s2 * factor * factor, self.sample_count)

    def then(self, other: "Cost") -> "Cost":
        """Return the cost of both, one after the other."""
        samples = min(self.sample_count, other.sample_count)
        return Cost(self.mean_s + other.mean_s, self.variance_s2 + other.variance_s2, samples)

    def draw(self, source: random.Random, count: int = 1) -> float:
        """Return seconds that one more measurement might take, or the mean of `count` independent ones: log-normal with
        this mean and variance, so never below 0."""
        if self.variance_s2 <= 0.0 or self.mean_s <= 0.0:
            return self.mean_s
        variance = math.log1p(self.variance_s2 / count / (self.mean_s * self.mean_s))
        return source.lognormvariate(math.log(self.mean_s) - variance / 2.0, math.sqrt(variance))


NOTHING = Cost(0.0, 0.0, 1)


def steady(mean_s: float, variation: float = 0.0) -> Cost:
    """Return the cost with that mean; `variation` is the standard deviation as a share of it. It counts as two samples,
    the fewest with a variance."""
    return Cost(mean_s, (mean_s * variation) ** 2, 2)


def for_every_batch(known: Mapping[int, Cost]) -> tuple[Cost, ...]:
    """Return the costs of batches of 1, 2, … up to the largest known size: between known sizes on the straight line,
    below the smallest as that one."""
    costs = []
    for size in range(1, max(known) + 1):
        below = max((other for other in known if other <= size), default=min(known))
        above = min(other for other in known if other >= size)
        share = (size - below) / (above - below) if above > below else 0.0
        costs.append(known[below].between(known[above], share))
    return tuple(costs)


@dataclass(frozen=True)
class BatchProfile:
    """`batch_size` requests of one size denoised together: the cost of each of the schedule's steps in turn, of the
    whole batch; the peak of device memory, None where it could not be measured."""

    width_px: Count
    height_px: Count
    guided: bool
    batch_size: Count
    steps: tuple[Cost, ...]
    peak_memory_bytes: Count | None = None

    @property
    def step(self) -> Cost:
        """e(b): any step, over the whole schedule."""
        return Cost.pooled(self.steps)


@dataclass(frozen=True)
class SizeProfile:
    """What is done once a picture: preparing it (prompt and first latent), decoding and encoding it as a PNG."""

    width_px: Count
    height_px: Count
    prepare: Cost
    decode: Cost
    encode: Cost


@dataclass(frozen=True)
class ModelProfile:
    """Of one model, device, precision and way of running (`execution`: as `--compile` says, and the kernels where there
    are any, as in `off+fused`). Memory in use once the model was loaded, and all there is; None
    where that is not known."""

    model: str
    model_digest: str
    device: str
    dtype: str
    threads: Count
    execution: str
    step_count: Count
    sizes: tuple[SizeProfile, ...]
    batches: tuple[BatchProfile, ...]
    device_memory_bytes: Count | None = None
    idle_memory_bytes: Count | None = None
    build_version: str = ""
    measured_at: str = ""

    def batch(self, width_px: int, height_px: int, *, guided: bool, batch_size: int) -> BatchProfile | None:
        """None when just that was not measured."""
        wanted = (width_px, height_px, guided, batch_size)
        return next((batch for batch in self.batches if _key(batch) == wanted), None)

    def step_seconds(self, width_px: int, height_px: int, *, guided: bool, batch_size: int) -> float | None:
        """Mean e(b); between measured batch sizes on the straight line, None outside them or for another size."""
        cost = self.step_cost(width_px, height_px, guided=guided, batch_size=batch_size)
        return None if cost is None else cost.mean_s

    def step_cost(self, width_px: int, height_px: int, *, guided: bool, batch_size: int) -> Cost | None:
        """Likewise with its variance."""
        known = self.step_costs(width_px, height_px, guided=guided)
        if not known or not min(known) <= batch_size <= max(known):
            return None
        return for_every_batch(known)[batch_size - 1]

    def step_costs(self, width_px: int, height_px: int, *, guided: bool) -> dict[int, Cost]:
        """Return e(b) by the batch sizes that were measured; none for a size that was not."""
        wanted = (width_px, height_px, guided)
        return {batch.batch_size: batch.step for batch in self.batches if _key(batch)[:3] == wanted}

    def size(self, width_px: int, height_px: int) -> SizeProfile | None:
        """None when that size was not measured."""
        return next((size for size in self.sizes if (size.width_px, size.height_px) == (width_px, height_px)), None)


def _key(batch: BatchProfile) -> tuple[int, int, bool, int]:
    return (batch.width_px, batch.height_px, batch.guided, batch.batch_size)


def run_seconds(
    profile: ModelProfile, width_px: int, height_px: int, *, guided: bool, steps: int
) -> tuple[tuple[int, float], ...]:
    """(batch size, mean seconds of a run of `steps` from noise), for each batch of that size that was measured; one is
    prepared after the other."""
    size = profile.size(width_px, height_px)
    prepare_s = size.prepare.mean_s if size is not None else 0.0
    measured = (batch for batch in profile.batches if _key(batch)[:3] == (width_px, height_px, guided))
    return tuple(
        sorted((batch.batch_size, batch.batch_size * prepare_s + steps * batch.step.mean_s) for batch in measured)
    )


def read_profile(path: Path) -> ModelProfile:
    """InvalidArgument naming the file, and what is wrong with it; at least one batch is in it."""
    profile = read_document(path, profile_from_json, "profiles")
    if not profile.batches:
        raise InvalidArgument.of("profiles", f"{path}: profile.batches must have at least one entry")
    return profile


def profile_to_json(profile: ModelProfile) -> str:
    return document_to_json(profile, FORMAT)


def profile_from_json(text: str) -> ModelProfile:
    """Raises InvalidArgument naming the field that is missing, of another type, or outside its limits."""
    profile = document_from_json(ModelProfile, text, FORMAT, "profile")
    for index, batch in enumerate(profile.batches):
        if not batch.steps:
            raise InvalidArgument.of(f"profile.batches[{index}].steps", "must have at least one entry")
    return profile
