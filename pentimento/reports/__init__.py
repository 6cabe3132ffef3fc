"""Reports: the same figures from a live, an emulated and a simulated run, so that they lie side by side."""

from pentimento.reports.record import Outcome, RequestRecord, Stage, StartKind

__all__ = ["Outcome", "RequestRecord", "Stage", "StartKind"]
