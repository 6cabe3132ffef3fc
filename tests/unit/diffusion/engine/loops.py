"""A step loop in this thread, driven tick by tick, and its listeners."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.engine import (
    BatchLimits,
    BatchReport,
    Denoiser,
    DenoisingListener,
    EngineJob,
    EngineObserver,
    EngineSettings,
    FinishedDenoising,
    StepLoop,
)
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.domain.errors import PentimentoError


@dataclass
class Listener(DenoisingListener):
    """Records everything; `at_step` runs on the engine's thread after that step."""

    at_step: dict[int, Any] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    previews: list[int] = field(default_factory=list)
    latents: dict[int, Tensor] = field(default_factory=dict)
    start: tuple[int, int] | None = None
    end: FinishedDenoising | PentimentoError | None = None
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

    def finished(self, denoising: FinishedDenoising) -> None:
        self.end = denoising
        self.over.set()

    def failed(self, error: PentimentoError) -> None:
        self.end = error
        self.over.set()

    def result(self) -> FinishedDenoising | PentimentoError:
        assert self.over.wait(60)
        assert self.end is not None
        return self.end

    @property
    def latent(self) -> Tensor:
        """Return the latent of the finished denoising."""
        assert isinstance(self.end, FinishedDenoising)
        return self.end.latent


@dataclass
class Observer(EngineObserver):
    batches: list[BatchReport] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    preemptions: list[int] = field(default_factory=list)
    refused_batches: list[int] = field(default_factory=list)
    steps: list[tuple[BatchKey, float, bool]] = field(default_factory=list)

    def admitted(self, waited_s: float) -> None:
        self.waits_s.append(waited_s)

    def ran(self, report: BatchReport) -> None:
        self.batches.append(report)

    def took_step(self, size: BatchKey, seconds: float, *, alone: bool) -> None:
        self.steps.append((size, seconds, alone))

    def preempted(self, request_count: int) -> None:
        self.preemptions.append(request_count)

    def ran_out_of_memory(self, request_count: int) -> None:
        self.refused_batches.append(request_count)

    @property
    def sizes(self) -> list[int]:
        return [report.request_count for report in self.batches]


class Loop:
    """A loop with its observer, and a clock that stands still unless it is set."""

    def __init__(self, model: DiffusionModel, *, denoiser: Denoiser | None = None, **settings: Any) -> None:
        self.now = 0.0
        self.observer = Observer()
        chosen = EngineSettings(**{"max_batch": 4, **settings})
        self.limits = BatchLimits(chosen.max_batch, None, self.clock)
        self.steps = StepLoop(model, denoiser or Denoiser(model), self.limits, chosen, self.observer, self.clock)

    def clock(self) -> float:
        return self.now

    def add(self, request: DenoisingRequest, listener: Listener | None = None) -> "Added":
        heard = listener or Listener()
        return Added(heard, self.steps.submit(request, heard))

    @torch.inference_mode()
    def tick(self, count: int = 1) -> bool:
        """Run that number of steps; return False when no request could take the last one."""
        return [self.steps.tick() for _ in range(count)][-1]

    def run(self) -> None:
        """Run until no request can take a step."""
        while self.tick():
            pass


class Added:
    """A submitted image and its listener."""

    def __init__(self, heard: Listener, job: EngineJob) -> None:
        self.heard = heard
        self.job = job

    @property
    def finished(self) -> FinishedDenoising:
        assert isinstance(self.heard.end, FinishedDenoising), self.heard.end
        return self.heard.end


class Scripted(Denoiser):
    """The real forward pass, changed by `change`: the number of the call (from 0), its input and its result."""

    def __init__(self, model: DiffusionModel, change: Callable[[int, Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__(model)
        self._change = change
        self.calls = self.releases = 0

    def predict(self, inputs: Any) -> torch.Tensor:
        number, self.calls = self.calls, self.calls + 1
        return self._change(number, inputs, super().predict(inputs))

    def release_memory(self) -> None:
        self.releases += 1
