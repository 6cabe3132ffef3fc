"""Who listens to paintings and to the engine in these tests."""

import threading
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pentimento.diffusion.engine import BatchReport, FinishedPainting
from pentimento.domain.errors import PentimentoError


@dataclass
class Listener:
    """Records everything; `at_step` runs on the engine's thread after that step."""

    at_step: dict[int, Any] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    previews: list[int] = field(default_factory=list)
    latents: dict[int, Tensor] = field(default_factory=dict)
    start: tuple[int, int] | None = None
    end: FinishedPainting | PentimentoError | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def started(self, first_step: int, step_count: int) -> None:
        self.start = (first_step, step_count)

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        self.steps.append(step)
        if predicted_clean is not None:
            self.previews.append(step)
        self.at_step.get(step, lambda: None)()

    def captured(self, step: int, sigma: float, latent: Tensor) -> None:
        self.latents[step] = latent

    def finished(self, painting: FinishedPainting) -> None:
        self.end = painting
        self.over.set()

    def failed(self, error: PentimentoError) -> None:
        self.end = error
        self.over.set()

    def result(self) -> FinishedPainting | PentimentoError:
        assert self.over.wait(60)
        assert self.end is not None
        return self.end

    @property
    def latent(self) -> Tensor:
        """Of the finished painting."""
        assert isinstance(self.end, FinishedPainting)
        return self.end.latent


@dataclass
class Observer:
    batches: list[BatchReport] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    preemptions: list[int] = field(default_factory=list)
    refused_batches: list[int] = field(default_factory=list)

    def admitted(self, waited_s: float) -> None:
        self.waits_s.append(waited_s)

    def ran(self, report: BatchReport) -> None:
        self.batches.append(report)

    def preempted(self, request_count: int) -> None:
        self.preemptions.append(request_count)

    def ran_out_of_memory(self, request_count: int) -> None:
        self.refused_batches.append(request_count)

    @property
    def sizes(self) -> list[int]:
        return [report.request_count for report in self.batches]
