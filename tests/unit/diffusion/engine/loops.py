"""A step loop in this thread, driven tick by tick."""

from collections.abc import Callable
from typing import Any

import torch

from pentimento.diffusion.engine import BatchLimits, Denoiser, EagerDenoiser, EngineSettings, PaintingTicket, StepLoop
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.painting import PaintingRequest
from tests.unit.diffusion.engine.listeners import Listener, Observer


class Loop:
    """The loop, who observes it, and its clock, which stands still unless it is set."""

    def __init__(self, model: DiffusionModel, *, denoiser: Denoiser | None = None, **settings: Any) -> None:
        self.now = 0.0
        self.observer = Observer()
        chosen = EngineSettings(**{"max_batch": 4, **settings})
        self.limits = BatchLimits(chosen.max_batch, None, self.clock)
        self.steps = StepLoop(model, denoiser or EagerDenoiser(model), self.limits, chosen, self.observer, self.clock)

    def clock(self) -> float:
        return self.now

    def add(self, request: PaintingRequest, listener: Listener | None = None) -> "Added":
        heard = listener or Listener()
        ticket = PaintingTicket(request, heard, self.now)
        self.steps.submit(ticket)
        return Added(heard, ticket)

    @torch.inference_mode()
    def tick(self, count: int = 1) -> bool:
        """False when nobody could take the last step."""
        return [self.steps.tick() for _ in range(count)][-1]

    def run(self) -> None:
        """Until nobody can take a step."""
        while self.tick():
            pass


class Added:
    def __init__(self, heard: Listener, ticket: PaintingTicket) -> None:
        self.heard = heard
        self.ticket = ticket


class Scripted:
    """The real forward pass, but what `change` makes of it: the call's number (from 0), its input and its result."""

    def __init__(self, model: DiffusionModel, change: Callable[[int, Any, torch.Tensor], torch.Tensor]) -> None:
        self._model = model
        self._change = change
        self.calls = self.releases = 0

    def padded(self, key: object, request_count: int) -> int:
        return request_count

    def predict(self, inputs: Any) -> torch.Tensor:
        number, self.calls = self.calls, self.calls + 1
        return self._change(number, inputs, self._model.predict(inputs))

    def encode(self, inputs: Any) -> Any:
        return self._model.encode(inputs)

    def advance(self, inputs: Any, encoding: Any, blocks_done: int) -> Any:
        return self._model.advance(inputs, encoding, blocks_done)

    def decode(self, inputs: Any, encoding: Any) -> torch.Tensor:
        return self._model.decode(inputs, encoding)

    def release_memory(self) -> None:
        self.releases += 1
