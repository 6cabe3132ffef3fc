"""What a plan wants of one worker: for devices that can hold one model or another."""

from pentimento.domain.fleet import Plan, WorkerAssignment

# This allocator decides nothing: whoever holds a model goes on with it, in batches of its own.
HOLDS_RESIDENT = "resident"


def wanted_of(plan: Plan, worker_id: str) -> WorkerAssignment | None:
    """Return what the plan assigns to the worker; None where it assigns nothing, or decides nothing."""
    wanted = next((entry for entry in plan.assignments if entry.worker_id == worker_id), None)
    return wanted if plan.allocator != HOLDS_RESIDENT else None
