"""Export the engine's events as metrics. On the engine's thread; nothing here blocks."""

from collections.abc import Sequence

from pentimento.diffusion.engine import BatchReport, EngineObserver
from pentimento.service.credits import BusyMeter
from services.unet_worker import metrics


class EngineMetrics(EngineObserver):
    """Record engine metrics. `meters` add up the device's busy seconds: one for each reader of a share."""

    def __init__(self, meters: Sequence[BusyMeter]) -> None:
        self._meters = meters

    def admitted(self, waited_s: float) -> None:
        metrics.QUEUE_WAIT_SECONDS.observe(waited_s)

    def ran(self, report: BatchReport) -> None:
        metrics.STEP_SECONDS.observe(report.seconds)
        metrics.BATCH.observe(report.request_count)
        for meter in self._meters:
            meter.add(report.seconds)

    def preempted(self, request_count: int) -> None:
        metrics.PREEMPTIONS.inc(request_count)

    def ran_out_of_memory(self, request_count: int) -> None:
        metrics.OUT_OF_MEMORY.inc()
