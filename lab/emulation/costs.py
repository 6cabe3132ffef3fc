"""Costs of models on emulated devices: seconds with their variance, by batch size."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from lab.emulation.cost_draws import added, slower
from lab.emulation.fleet_file import EmulatedModel
from pentimento.profiles.costs import NOTHING, Cost, SizeProfile, for_every_batch, steady


@dataclass(frozen=True)
class ModelCosts:
    """One model on a device of speed 1. `steps` holds the cost of one denoising step of the whole batch, at index batch
    size - 1; `step_count` is the length of a run from noise. Preparation runs on the device; decoding and encoding
    run next to it. `sizes` has the steps by image size and guidance, for requests that name them; `steps` serves all
    others. With a `swap`, `load` reads the model into host memory while the device generates, and `swap` places it."""

    model: str
    step_count: int
    steps: tuple[Cost, ...]
    prepare: Cost = NOTHING
    finish: Cost = NOTHING
    load: Cost = NOTHING
    swap: Cost | None = None
    sizes: Mapping[Hashable, tuple[Cost, ...]] = field(default_factory=dict)

    @property
    def max_batch(self) -> int:
        return len(self.steps)

    def limit(self, key: Hashable) -> int:
        """Return the largest measured batch of that size; KeyError for one that was not measured."""
        return len(self.steps if key is None else self.sizes[key])

    def step(self, batch_size: int, key: Hashable = None) -> Cost:
        """Return the cost of a step; a batch larger than all measured ones costs as much as the largest."""
        steps = self.steps if key is None else self.sizes[key]
        return steps[min(batch_size, len(steps)) - 1]

    def run_s(self, batch_size: int) -> float:
        """Return the mean seconds from noise to the last latent for a batch of this size, on the device alone."""
        return batch_size * self.prepare.mean_s + self.step_count * self.step(batch_size).mean_s

    def slower(self, factor: float) -> "ModelCosts":
        """Return the costs on a device that takes `factor` times as long; loading is not the device's business."""
        return replace(
            self,
            steps=_slower(self.steps, factor),
            prepare=slower(self.prepare, factor),
            finish=slower(self.finish, factor),
            sizes={key: _slower(steps, factor) for key, steps in self.sizes.items()},
        )


def _slower(costs: tuple[Cost, ...], factor: float) -> tuple[Cost, ...]:
    return tuple(slower(cost, factor) for cost in costs)


def from_latencies(
    model: str,
    step_count: int,
    seconds_by_batch: dict[int, float],
    *,
    variation: float = 0.0,
    prepare: Cost = NOTHING,
    finish: Cost = NOTHING,
    load: Cost = NOTHING,
    swap: Cost | None = None,
) -> ModelCosts:
    """Return the costs of published seconds of a whole run by batch size; sizes in between are on the straight line.
    `variation` is that of a whole run, so that of a step is larger by the root of `step_count`."""
    step_variation = variation * step_count**0.5
    known = {size: steady(seconds / step_count, step_variation) for size, seconds in seconds_by_batch.items()}
    return ModelCosts(model, step_count, for_every_batch(known), prepare, finish, load, swap)


def costs_of(model: EmulatedModel) -> ModelCosts:
    """Return the costs that `pentimento profile cost` measured, for the model's own size and guidance and for all
    others. Missing measurements of preparation, decoding and encoding count as 0."""
    profile = model.profile
    keys = {(batch.width_px, batch.height_px, batch.guided) for batch in profile.batches}
    sizes: dict[Hashable, tuple[Cost, ...]] = {
        (width, height, guided): for_every_batch(profile.step_costs(width, height, guided=guided))
        for width, height, guided in keys
    }
    once = once_per_image(model)
    return ModelCosts(
        model.name,
        model.steps,
        sizes[(model.width_px, model.height_px, model.guided)],
        once.prepare,
        added(once.decode, once.encode),
        model.load,
        model.swap,
        sizes,
    )


def once_per_image(model: EmulatedModel) -> SizeProfile:
    """Return the costs of preparing, decoding and encoding an image; nothing if they were not measured."""
    found = model.profile.size(model.width_px, model.height_px)
    return found or SizeProfile(model.width_px, model.height_px, NOTHING, NOTHING, NOTHING)
