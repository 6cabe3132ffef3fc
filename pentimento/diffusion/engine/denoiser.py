"""The forward pass that the engine takes: the model's own, or compiled for the batch sizes that were warmed."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor

from pentimento.diffusion.engine.limits import rows_of
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families.model import BatchKey, Conditioning, DenoiserInput, DiffusionModel

# Shapes that one process may compile; torch's own limit of 8 is soon reached with several sizes and regimes.
MAX_GRAPHS = 64


class Denoiser(Protocol):
    """The forward pass that the engine calls, on its own thread."""

    def padded(self, key: BatchKey, request_count: int) -> int:
        """Return how many requests are computed for a batch of that many; at least as many."""
        ...

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction, shaped as the latents; the caller may keep it."""
        ...


class EagerDenoiser:
    """The model's own forward pass, run eagerly."""

    def __init__(self, model: DiffusionModel) -> None:
        self._model = model

    def padded(self, key: BatchKey, request_count: int) -> int:
        """Return `request_count`: nothing is padded."""
        return request_count

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction, shaped as the latents."""
        return self._model.predict(inputs)


class CompileMode(Enum):
    """How the forward pass is compiled. `graphs` replays CUDA graphs besides: no launches to wait for, memory kept for
    every batch size."""

    OFF = "off"
    COMPILE = "compile"
    GRAPHS = "graphs"


_TORCH_MODES = {CompileMode.COMPILE: "default", CompileMode.GRAPHS: "reduce-overhead"}


class CompiledDenoiser:
    """torch.compile around the family's forward pass. Only shapes that `warm` went through run compiled, padded to the
    next warm batch size; any other runs eagerly, so that no request ever waits for a compiler. Weights stay inputs of
    the graphs (nothing is frozen or prepacked): a patched weight is seen. Residuals and adapters run eagerly."""

    def __init__(self, model: DiffusionModel, mode: CompileMode, compiler: Callable[..., Any] = torch.compile) -> None:
        torch._dynamo.config.recompile_limit = MAX_GRAPHS
        self._model = model
        self._keeps_output = mode is CompileMode.GRAPHS
        self._forward = compiler(_forward_of(model), dynamic=False, mode=_TORCH_MODES[mode])
        self._sizes: dict[BatchKey, tuple[int, ...]] = {}
        self._shapes: set[torch.Size] = set()

    def warm(self, key: BatchKey, batch_sizes: Sequence[int]) -> None:
        """Compile for these numbers of requests; seconds to minutes each. Runs on the engine's thread, which CUDA
        graphs belong to."""
        for size in sorted(batch_sizes):
            inputs = example_input(self._model, key, size * rows_of(key))
            for _ in range(3):  # CUDA graphs: a warm-up, the recording, a replay
                self._run(inputs)
            self._shapes.add(inputs.latents.shape)
            self._sizes[key] = (*self.sizes(key), size)

    def sizes(self, key: BatchKey) -> tuple[int, ...]:
        """Return the batch sizes that run compiled, ascending."""
        return self._sizes.get(key, ())

    def padded(self, key: BatchKey, request_count: int) -> int:
        """Return the next warm batch size, or `request_count` where none is."""
        return next((size for size in self.sizes(key) if size >= request_count), request_count)

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction, compiled where its shape is warm, else eager."""
        if inputs.residuals is not None or inputs.adapters is not None or inputs.latents.shape not in self._shapes:
            return self._model.predict(inputs)
        return self._run(inputs)

    def _run(self, inputs: DenoiserInput) -> Tensor:
        texts = inputs.conditioning
        if self._keeps_output:
            torch.compiler.cudagraph_mark_step_begin()
        prediction: Tensor = self._forward(inputs.latents, inputs.timesteps, inputs.time_terms, *texts.parts)
        return prediction.clone() if self._keeps_output else prediction


def _forward_of(model: DiffusionModel) -> Callable[..., Tensor]:
    def forward(
        latents: Tensor, timesteps: Tensor, time_terms: Tensor | None, states: Tensor, *texts: Tensor | None
    ) -> Tensor:
        return model.predict(DenoiserInput(latents, timesteps, Conditioning(states, *texts), time_terms=time_terms))

    return forward


def batch_sizes_up_to(most: int) -> tuple[int, ...]:
    """Return the powers of two below `most`, and `most`: padding never doubles a batch."""
    powers = [2**exponent for exponent in range(most.bit_length()) if 2**exponent < most]
    return (*powers, most)
