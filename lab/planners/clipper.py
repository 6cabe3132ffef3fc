"""Clipper's batches: one more after a period without violations, half after one with."""

from dataclasses import dataclass

from pentimento.policies.allocation import AllocationContext
from pentimento.policies.serving.demand import demand_of
from pentimento.policies.serving.uniform import OneModel


@dataclass(frozen=True)
class ClipperModel(OneModel):
    """One model on every device, in batches of Clipper's rule, never above what fits the SLO."""

    def batch(self, context: AllocationContext) -> int:
        """Return the next batch size."""
        before = int(context.last.memory[0]) if context.last.memory else 0
        if demand_of(context, self.model).violation_count > 0:
            return max(1, before // 2)
        return min(before + 1, super().batch(context))
