"""Workloads: who asks for what and when, as values that a simulator, an emulated fleet and a live suite play alike."""

from pentimento.workloads.arrival import Arrival, Workload

__all__ = ["Arrival", "Workload"]
