"""Read the costs of a model by batch size from the profiles of a plan input."""

from collections.abc import Iterable
from dataclasses import dataclass

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.inputs import PlanInput


@dataclass(frozen=True, slots=True)
class BatchCost:
    """The cost of a batch: a whole run (every step) of `batch_size` requests together takes `latency_s`. A request
    waits for `wait_s` before its place in one."""

    batch_size: int
    latency_s: float
    wait_s: float = 0.0

    @property
    def throughput(self) -> float:
        """T(b): requests a second of one device that always runs full batches."""
        return self.batch_size / self.latency_s

    @property
    def felt_s(self) -> float:
        """Seconds of a whole run with the wait before it."""
        return self.wait_s + self.latency_s


def batch_costs(
    context: PlanInput, model: str, sizes: Iterable[int] | None = None, saved_share: float = 0.0
) -> tuple[BatchCost, ...]:
    """Return a model's cost by batch size, ascending.

    `sizes` limits them; a size between two profiled ones lies on the straight line. `saved_share` (0..1) of the steps
    are left out. On a mixed fleet the slowest kind of device decides, since DiffServe and MoDM know one; without
    devices all kinds count. Raises FailedPrecondition for a model without a profile, which is never planned.
    """
    measured = _measured(context, model, saved_share)
    if not measured:
        raise FailedPrecondition(Reason.PROFILE_MISSING, f"model {model} has no profile for the devices that are there")
    wanted = sorted(measured) if sizes is None else sorted(set(sizes))
    costs = (BatchCost(size, latency) for size in wanted if (latency := _latency(measured, size)) is not None)
    return tuple(costs) or (BatchCost(min(measured), measured[min(measured)]),)


def profiled_steps(context: PlanInput, model: str) -> int:
    """Return the denoising steps of a run of `model` as its profile says, 0 where there is none."""
    return next((one.step_count for one in context.profiles if one.model == model), 0)


def scoring_s(context: PlanInput, stated_s: float, discriminators: Iterable[str]) -> float:
    """Return the seconds of one scoring by the slowest discriminator: as stated, else as measured; 0 if unknown."""
    names = set(discriminators)
    measured = (one.latency_s for one in context.profiles if one.model in names and one.batch_size == 1)
    return stated_s or max(measured, default=0.0)


def has_profile(context: PlanInput, model: str) -> bool:
    """Return whether `model` has a profile on a kind of device of the fleet."""
    return bool(_measured(context, model))


def _measured(context: PlanInput, model: str, saved_share: float = 0.0) -> dict[int, float]:
    """Return seconds by batch size."""
    present = {worker.device for worker in context.workers()}
    measured: dict[int, float] = {}
    for profile in context.profiles:
        if profile.model == model and (not present or not profile.device or profile.device in present):
            seconds = profile.seconds_left(saved_share) if saved_share else profile.latency_s
            measured[profile.batch_size] = max(seconds, measured.get(profile.batch_size, 0.0))
    return measured


def _latency(measured: dict[int, float], size: int) -> float | None:
    if size in measured:
        return measured[size]
    below = max((known for known in measured if known < size), default=None)
    above = min((known for known in measured if known > size), default=None)
    if below is None or above is None:
        return None
    share = (size - below) / (above - below)
    return measured[below] + share * (measured[above] - measured[below])
