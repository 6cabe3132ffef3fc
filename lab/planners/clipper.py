"""Clipper's batches: one more after a period without violations, half after one with."""

from dataclasses import dataclass, replace

from pentimento.policies.plan.demand import demand_of
from pentimento.policies.plan.inputs import Decision, PlanInput
from pentimento.policies.plan.one_model import OneModel


@dataclass(frozen=True)
class ClipperMemory:
    """Keep the batch size of all devices."""

    batch: int


@dataclass(frozen=True)
class ClipperModel(OneModel):
    """One model on every device, in batches of Clipper's rule, never above what fits the SLO."""

    def __call__(self, context: PlanInput) -> Decision:
        return replace(super().__call__(context), memory=ClipperMemory(self.batch(context)))

    def batch(self, context: PlanInput) -> int:
        """Return the next batch size."""
        before = context.last.memory.batch if isinstance(context.last.memory, ClipperMemory) else 0
        if demand_of(context, self.model).violation_count > 0:
            return max(1, before // 2)
        return min(before + 1, super().batch(context))
