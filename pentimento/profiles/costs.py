"""Describe measured costs of a model on a device: seconds of a denoising step at every batch size, e(b), and memory.

`pentimento profile cost` writes them. The controller plans with them; the simulator and emulated devices follow them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pentimento.domain.errors import InvalidArgument
from pentimento.files.json_values import ValueRange, from_json, json_files, read_document, to_json
from pentimento.profiles.document import ProfileKind, document_to_json, entries_of

Count = Annotated[int, ValueRange(1)]
Seconds = Annotated[float, ValueRange(0.0)]


@dataclass(frozen=True)
class Cost:
    """Hold the mean and unbiased variance of `sample_count` measurements in seconds."""

    mean_s: Seconds
    variance_s2: Annotated[float, ValueRange(0.0)]
    sample_count: Count

    @staticmethod
    def of(samples_s: Sequence[float]) -> "Cost":
        """Return the cost of `samples_s`, at least one."""
        count, mean = len(samples_s), math.fsum(samples_s) / len(samples_s)
        squares = math.fsum((sample - mean) ** 2 for sample in samples_s)
        return Cost(mean, squares / (count - 1) if count > 1 else 0.0, count)

    @staticmethod
    def pooled(costs: "Sequence[Cost]") -> "Cost":
        """Return the cost of all samples of `costs` together, at least one."""
        count = sum(cost.sample_count for cost in costs)
        mean = math.fsum(cost.mean_s * cost.sample_count for cost in costs) / count
        squares = math.fsum(
            cost.variance_s2 * (cost.sample_count - 1) + cost.sample_count * (cost.mean_s - mean) ** 2 for cost in costs
        )
        return Cost(mean, squares / (count - 1) if count > 1 else 0.0, count)

    def between(self, other: "Cost", share: float) -> "Cost":
        """Return the linear interpolation from this cost to `other` at `share` (0..1)."""
        mean = self.mean_s + share * (other.mean_s - self.mean_s)
        variance = self.variance_s2 + share * (other.variance_s2 - self.variance_s2)
        return Cost(mean, variance, min(self.sample_count, other.sample_count))


NOTHING = Cost(0.0, 0.0, 1)


def steady(mean_s: float, variation: float = 0.0) -> Cost:
    """Return the cost with that mean and the standard deviation `variation`, a share of the mean.

    It counts as two samples, the fewest with a variance.
    """
    return Cost(mean_s, (mean_s * variation) ** 2, 2)


def for_every_batch(known: Mapping[int, Cost]) -> tuple[Cost, ...]:
    """Return the costs of batches of 1, 2, … up to the largest known size.

    Costs between known sizes are interpolated linearly; costs below the smallest equal its cost.
    """
    costs = []
    for size in range(1, max(known) + 1):
        below = max((other for other in known if other <= size), default=min(known))
        above = min(other for other in known if other >= size)
        share = (size - below) / (above - below) if above > below else 0.0
        costs.append(known[below].between(known[above], share))
    return tuple(costs)


@dataclass(frozen=True)
class BatchProfile:
    """Hold the cost of each step of a schedule for a whole batch of requests of one size.

    The peak of device memory is None if it could not be measured.
    """

    width_px: Count
    height_px: Count
    guided: bool
    batch_size: Count
    steps: tuple[Cost, ...]
    peak_memory_bytes: Count | None = None

    @property
    def step(self) -> Cost:
        """Return e(b), the cost of a step over the whole schedule."""
        return Cost.pooled(self.steps)


@dataclass(frozen=True)
class SizeProfile:
    """Hold the costs of one image without its steps: prompt and first latents, decoding, encoding as a PNG."""

    width_px: Count
    height_px: Count
    prepare: Cost
    decode: Cost
    encode: Cost


@dataclass(frozen=True)
class ModelProfile:
    """Hold the costs of one model on one device, in one precision and execution.

    `execution` has the value of `--compile` and the kernels, as in `off+fused`. Memory: all of the device, and the part
    in use after loading the model; None if unknown.
    """

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
        """Return the measurement of that batch; None without one."""
        wanted = (width_px, height_px, guided, batch_size)
        return next((batch for batch in self.batches if _key(batch) == wanted), None)

    def step_seconds(self, width_px: int, height_px: int, *, guided: bool, batch_size: int) -> float | None:
        """Return the mean of `step_cost`."""
        cost = self.step_cost(width_px, height_px, guided=guided, batch_size=batch_size)
        return None if cost is None else cost.mean_s

    def step_cost(self, width_px: int, height_px: int, *, guided: bool, batch_size: int) -> Cost | None:
        """Return e(b), interpolated linearly between measured batch sizes; None outside them or for another size."""
        known = self.step_costs(width_px, height_px, guided=guided)
        if not known or not min(known) <= batch_size <= max(known):
            return None
        return for_every_batch(known)[batch_size - 1]

    def step_costs(self, width_px: int, height_px: int, *, guided: bool) -> dict[int, Cost]:
        """Return e(b) by measured batch size."""
        wanted = (width_px, height_px, guided)
        return {batch.batch_size: batch.step for batch in self.batches if _key(batch)[:3] == wanted}

    def size(self, width_px: int, height_px: int) -> SizeProfile | None:
        """Return the measurement of that size; None without one."""
        return next((size for size in self.sizes if (size.width_px, size.height_px) == (width_px, height_px)), None)


def _key(batch: BatchProfile) -> tuple[int, int, bool, int]:
    return (batch.width_px, batch.height_px, batch.guided, batch.batch_size)


def run_seconds(
    profile: ModelProfile, width_px: int, height_px: int, *, guided: bool, steps: int
) -> tuple[tuple[int, float], ...]:
    """Return (batch size, mean seconds of a run of `steps` from noise) for each measured batch of that size.

    The images of a batch are prepared one after the other.
    """
    size = profile.size(width_px, height_px)
    prepare_s = size.prepare.mean_s if size is not None else 0.0
    measured = (batch for batch in profile.batches if _key(batch)[:3] == (width_px, height_px, guided))
    return tuple(
        sorted((batch.batch_size, batch.batch_size * prepare_s + steps * batch.step.mean_s) for batch in measured)
    )


def parse_costs(text: str, where: str = "") -> tuple[ModelProfile, ...]:
    """Return the cost profiles of a file's text.

    Raises InvalidArgument naming the field that is missing, of another type, or outside its limits.
    """
    found = entries_of(text, ProfileKind.COST, where)
    return tuple(_checked(entry, place) for place, entry in found.items())


def _checked(entry: dict[str, Any], where: str) -> ModelProfile:
    profile = from_json(ModelProfile, {name: part for name, part in entry.items() if name != "kind"}, where)
    for index, batch in enumerate(profile.batches):
        if not batch.steps:
            raise InvalidArgument.of(f"{where}.batches[{index}].steps", "must have at least one entry")
    return profile


def costs_to_json(*costs: ModelProfile) -> str:
    """Return the text of a file of cost profiles."""
    return document_to_json(map(cost_entry, costs))


def cost_entry(costs: ModelProfile) -> dict[str, Any]:
    """Return the file entry of a cost profile."""
    return {"kind": ProfileKind.COST.value, **to_json(costs)}


def costs_key(costs: ModelProfile) -> tuple[object, ...]:
    """Return the subject of a cost profile: a later profile with the same key replaces it."""
    return (costs.model, costs.model_digest, costs.device, costs.dtype, costs.threads, costs.execution)


def costs_from_json(text: str) -> ModelProfile:
    """Return the only cost profile of a text. Raises InvalidArgument naming the field."""
    found = parse_costs(text)
    if len(found) != 1:
        raise InvalidArgument.of("profiles", f"must be one cost profile, got {len(found)}")
    return found[0]


def read_costs(paths: Iterable[Path]) -> tuple[ModelProfile, ...]:
    """Return the cost profiles of files, and of all files (.json) of directories; other kinds are skipped.

    Raises InvalidArgument naming the file and the fault.
    """
    found = [profile for path in json_files(paths) for profile in read_document(path, parse_costs, "profiles")]
    for profile in found:
        if not profile.batches:
            raise InvalidArgument.of("profiles", f"{profile.model}: batches must have at least one entry")
    return tuple(found)
