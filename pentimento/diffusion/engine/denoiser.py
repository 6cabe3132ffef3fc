"""The forward pass that the engine takes: the model's own, or compiled for the batch sizes that were warmed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor

from pentimento.diffusion.engine.captured import ReplayedFunction
from pentimento.diffusion.engine.limits import rows_of
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families.model import (
    BatchKey,
    Conditioning,
    ControlResiduals,
    DenoiserEncoding,
    DenoiserInput,
    DiffusionModel,
)

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

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the pass's first half; the caller may keep it."""
        ...

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        """Return the encoding once so many of a transformer's blocks have run; the caller may keep it."""
        ...

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction from an encoding of the same rows and their residuals; the caller may keep it."""
        ...

    def release_memory(self) -> None:
        """Give up what is kept on the device for later passes."""
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

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the pass's first half."""
        return self._model.encode(inputs)

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        """Return the encoding once so many of a transformer's blocks have run."""
        return self._model.advance(inputs, encoding, blocks_done)

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction from an encoding of the same rows."""
        return self._model.decode(inputs, encoding)

    def release_memory(self) -> None:
        """Do nothing: nothing is kept."""


class CompileMode(Enum):
    """How the forward pass is compiled. `capture` replays CUDA graphs of the pass as it is, nothing compiled
    (`captured`)."""

    OFF = "off"
    COMPILE = "compile"
    CAPTURE = "capture"


class CompiledDenoiser:
    """torch.compile around the family's forward pass. Only shapes that `warm` went through run compiled, padded to the
    next warm batch size; any other runs eagerly, so that no request ever waits for a compiler. Those that are captured
    need none: any shape that comes again is. Weights stay inputs of the graphs (nothing is frozen or prepacked): a
    patched weight is seen. Adapters run eagerly.

    With `halves` the two sides of the ControlNets' seam are compiled too, each by itself, for passes that wait for
    residuals in between, or have them (Katz, section 8); without, and where the number of residuals is a ControlNet's
    own, such passes run eagerly."""

    def __init__(
        self,
        model: DiffusionModel,
        mode: CompileMode,
        compiler: Callable[..., Any] = torch.compile,
        *,
        halves: bool = False,
    ) -> None:
        if mode is not CompileMode.CAPTURE:  # which needs no compiler: importing one takes time and memory
            torch._dynamo.config.recompile_limit = MAX_GRAPHS
        self._model = model
        # Of any shape; what it returns is written over by its next run.
        self._is_captured = mode is CompileMode.CAPTURE
        self._forward = compiler(_forward_of(model), dynamic=False)
        self._encoder = compiler(_encoder_of(model), dynamic=False) if halves else None
        self._decoder = compiler(_decoder_of(model), dynamic=False) if halves else None
        self._sizes: dict[BatchKey, tuple[int, ...]] = {}
        self._shapes: set[torch.Size] = set()
        self._half_shapes: set[torch.Size] = set()

    def warm(self, key: BatchKey, batch_sizes: Sequence[int]) -> None:
        """Compile for these numbers of requests; seconds to minutes each. Runs on the engine's thread, which CUDA
        graphs belong to."""
        for size in sorted(batch_sizes):
            inputs = example_input(self._model, key, size * rows_of(key))
            for number in range(3):  # CUDA graphs: a warm-up, the recording, a replay
                self._run(inputs)
                # Halves that are captured take much memory: they are recorded once such pictures come.
                if not number or not self._is_captured:
                    self._warm_halves(inputs)
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
        if inputs.residuals is not None and self._has_halves(inputs):
            return self.decode(inputs, self.encode(inputs))
        is_known = self._is_captured or inputs.latents.shape in self._shapes
        if inputs.residuals is not None or inputs.adapters is not None or not is_known:
            return self._model.predict(inputs)
        return self._run(inputs)

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the pass's first half, compiled where its shape is warm, else eager."""
        return self._run_encoder(inputs) if self._has_halves(inputs) else self._model.encode(inputs)

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        """Return the encoding once so many of a transformer's blocks have run, eager: their number varies."""
        return self._model.advance(inputs, encoding, blocks_done)

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction from an encoding, compiled where its shape is warm and there are residuals, else
        eager."""
        if inputs.residuals is None or not encoding.tensors or not self._has_halves(inputs):
            return self._model.decode(inputs, encoding)
        return self._run_decoder(inputs, encoding, inputs.residuals)

    def release_memory(self) -> None:
        """Forget what was captured; passes that come again are captured anew."""
        for function in (self._forward, self._encoder, self._decoder):
            if isinstance(function, ReplayedFunction):
                function.forget()

    def _has_halves(self, inputs: DenoiserInput) -> bool:
        shapes = self._half_shapes
        return inputs.adapters is None and (inputs.latents.shape in shapes or (self._is_captured and bool(shapes)))

    def _warm_halves(self, inputs: DenoiserInput) -> None:
        if self._encoder is None:
            return
        encoding = self._run_encoder(inputs)
        if (residuals := self._model.example_residuals(encoding)) is not None:
            self._run_decoder(inputs, encoding, residuals)
            self._half_shapes.add(inputs.latents.shape)

    def _run(self, inputs: DenoiserInput) -> Tensor:
        texts = inputs.conditioning
        prediction: Tensor = self._forward(inputs.latents, inputs.timesteps, inputs.time_terms, *texts.parts)
        return prediction.clone() if self._is_captured else prediction

    def _run_encoder(self, inputs: DenoiserInput) -> DenoiserEncoding:
        assert self._encoder is not None
        texts = inputs.conditioning.parts
        tensors: tuple[Tensor, ...] = self._encoder(inputs.latents, inputs.timesteps, inputs.time_terms, *texts)
        return DenoiserEncoding(tuple(tensor.clone() if self._is_captured else tensor for tensor in tensors))

    def _run_decoder(self, inputs: DenoiserInput, encoding: DenoiserEncoding, residuals: ControlResiduals) -> Tensor:
        assert self._decoder is not None
        texts = inputs.conditioning.parts
        before = (inputs.latents, inputs.timesteps, inputs.time_terms)
        prediction: Tensor = self._decoder(encoding.tensors, residuals.tensors, *before, *texts)
        return prediction.clone() if self._is_captured else prediction


def _forward_of(model: DiffusionModel) -> Callable[..., Tensor]:
    def forward(*parts: Tensor | None) -> Tensor:
        return model.predict(_input_of(*parts))

    return forward


def _encoder_of(model: DiffusionModel) -> Callable[..., tuple[Tensor, ...]]:
    def encode(*parts: Tensor | None) -> tuple[Tensor, ...]:
        return model.encode(_input_of(*parts)).tensors

    return encode


def _decoder_of(model: DiffusionModel) -> Callable[..., Tensor]:
    """With a UNet's residuals: those of the mid block are the last."""

    def decode(encoded: tuple[Tensor, ...], residuals: tuple[Tensor, ...], *parts: Tensor | None) -> Tensor:
        inputs = replace(_input_of(*parts), residuals=ControlResiduals(residuals[:-1], residuals[-1]))
        return model.decode(inputs, DenoiserEncoding(encoded))

    return decode


def _input_of(*parts: Any) -> DenoiserInput:
    latents, timesteps, terms, states, *texts = parts
    return DenoiserInput(latents, timesteps, Conditioning(states, *texts), time_terms=terms)


def batch_sizes_up_to(most: int) -> tuple[int, ...]:
    """Return the powers of two below `most`, and `most`: padding never doubles a batch."""
    powers = [2**exponent for exponent in range(most.bit_length()) if 2**exponent < most]
    return (*powers, most)
