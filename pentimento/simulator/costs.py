"""What models cost on simulated devices: seconds with their variance, by batch size."""

from dataclasses import dataclass, replace

from pentimento.devices.profile import Cost, ModelProfile
from pentimento.domain.errors import InvalidArgument

NOTHING = Cost(0.0, 0.0, 1)


def steady(mean_s: float, variation: float = 0.0) -> Cost:
    """`variation` is the standard deviation as a share of the mean."""
    return Cost(mean_s, (mean_s * variation) ** 2, 1)


@dataclass(frozen=True)
class ModelCosts:
    """One model on a device of speed 1. `steps` by batch size - 1, each the cost of one denoising step of the whole
    batch; `step_count` are those of a run from noise. Prepared on the device, decoded and encoded beside it."""

    model: str
    step_count: int
    steps: tuple[Cost, ...]
    prepare: Cost = NOTHING
    finish: Cost = NOTHING
    load: Cost = NOTHING

    @property
    def max_batch(self) -> int:
        return len(self.steps)

    @property
    def digest(self) -> str:
        """Stands for the model's digest; a simulated model has no weights."""
        return f"simulated:{self.model}"

    def step(self, batch_size: int) -> Cost:
        return self.steps[min(batch_size, len(self.steps)) - 1]

    def run_s(self, batch_size: int) -> float:
        """Mean seconds from noise to the last latent for a batch of this size, on the device alone."""
        return batch_size * self.prepare.mean_s + self.step_count * self.step(batch_size).mean_s

    def slower(self, factor: float) -> "ModelCosts":
        """On a device that takes `factor` times as long; loading is not the device's business."""
        return replace(
            self,
            steps=tuple(cost.times(factor) for cost in self.steps),
            prepare=self.prepare.times(factor),
            finish=self.finish.times(factor),
        )


def from_latencies(
    model: str,
    step_count: int,
    seconds_by_batch: dict[int, float],
    *,
    variation: float = 0.0,
    prepare: Cost = NOTHING,
    finish: Cost = NOTHING,
    load: Cost = NOTHING,
) -> ModelCosts:
    """From published seconds of a whole run by batch size; sizes in between on the straight line. `variation` is that
    of a whole run, so that of a step is larger by the root of `step_count`."""
    step_variation = variation * step_count**0.5
    known = {size: steady(seconds / step_count, step_variation) for size, seconds in seconds_by_batch.items()}
    return ModelCosts(model, step_count, _filled(known), prepare, finish, load)


def from_profile(
    profile: ModelProfile, width_px: int, height_px: int, *, guided: bool, load: Cost = NOTHING
) -> ModelCosts:
    """From what `pentimento bench profile` measured. InvalidArgument where that size was not measured."""
    size = profile.size(width_px, height_px)
    asked = (width_px, height_px, guided)
    measured = {b.batch_size: b.step for b in profile.batches if (b.width_px, b.height_px, b.guided) == asked}
    if size is None or not measured:
        raise InvalidArgument.of(profile.model, f"no profile at {width_px}x{height_px}, guided={guided}")
    finish = Cost(
        size.decode.mean_s + size.encode.mean_s,
        size.decode.variance_s2 + size.encode.variance_s2,
        min(size.decode.sample_count, size.encode.sample_count),
    )
    return ModelCosts(profile.model, profile.step_count, _filled(measured), size.prepare, finish, load)


def _filled(known: dict[int, Cost]) -> tuple[Cost, ...]:
    """For every batch size up to the largest known one; below the smallest, as that one."""
    costs = []
    for size in range(1, max(known) + 1):
        below = max((other for other in known if other <= size), default=min(known))
        above = min(other for other in known if other >= size)
        share = (size - below) / (above - below) if above > below else 0.0
        costs.append(known[below].between(known[above], share))
    return tuple(costs)
