"""Run the engine's forward pass: eagerly by the model, or compiled for the batch sizes that were warmed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pentimento.devices.choices import CompileMode
from pentimento.diffusion.engine.captured import ReplayedFunction
from pentimento.diffusion.engine.probe import example_input, rows_of
from pentimento.diffusion.families.model import (
    BatchKey,
    Conditioning,
    ControlResiduals,
    DenoiserEncoding,
    DenoiserInput,
    DiffusionModel,
)

# Shapes that one process may compile; several sizes and regimes soon reach torch's default limit of 8.
MAX_GRAPHS = 64


# Shapes of latents and text states: a compiled pass serves both as they were.
_Shapes = tuple[torch.Size, torch.Size]


def _shapes_of(inputs: DenoiserInput) -> _Shapes:
    return inputs.latents.shape, inputs.conditioning.states.shape


class Denoiser:
    """Run the model's forward pass eagerly; the engine calls it on its thread. The caller may keep all results."""

    def __init__(self, model: DiffusionModel) -> None:
        self._model = model

    def padded(self, key: BatchKey, request_count: int) -> int:
        """Return the number of requests computed for a batch of `request_count`, padding included."""
        return request_count

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction, shaped as the latents."""
        return self._model.predict(inputs)

    def predict_and_keep(self, inputs: DenoiserInput) -> tuple[Tensor, Tensor | None]:
        """Return the prediction and the deep features of its rows; None if the network has none."""
        return self._model.predict_and_keep(inputs)

    def predict_from(self, inputs: DenoiserInput, features: Tensor) -> Tensor:
        """Return the prediction from deep features of an earlier step of the same rows."""
        return self._model.predict_from(inputs, features)

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the pass's first half."""
        return self._model.encode(inputs)

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        """Return the encoding after `blocks_done` of a transformer's blocks."""
        return self._model.advance(inputs, encoding, blocks_done)

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction from an encoding of the same rows and their residuals."""
        return self._model.decode(inputs, encoding)

    def release_memory(self) -> None:
        """Release the device memory held for later passes."""


class CompiledDenoiser(Denoiser):
    """Apply torch.compile to the family's forward pass. Only shapes that `warm` ran are compiled, padded to the next
    warm batch size; all others run eagerly, so that no request waits for a compiler. Capture needs no compiler: any
    repeated shape is captured. Weights stay inputs of the graphs (nothing is frozen or prepacked), so patched weights
    take effect. Adapters and image prompts run eagerly, and so do the parts between a transformer's blocks: their
    number varies.

    With `halves` the passes before and after the ControlNet residuals are compiled too, separately, for passes that
    have residuals or wait for them in between (Katz, section 8). Without it, and if the number of residuals depends on
    the ControlNet, such passes run eagerly."""

    def __init__(
        self,
        model: DiffusionModel,
        mode: CompileMode,
        compiler: Callable[..., Any] = torch.compile,
        *,
        halves: bool = False,
    ) -> None:
        if mode is not CompileMode.CAPTURE:  # capture needs no compiler, and importing one takes time and memory
            torch._dynamo.config.recompile_limit = MAX_GRAPHS
        super().__init__(model)
        # Captures run any shape; the next run overwrites the result.
        self._is_captured = captured = mode is CompileMode.CAPTURE
        compiled = partial(compiler, dynamic=False)
        self._forward = compiled(lambda *parts: model.predict(_input_of(*parts)))
        self._encoder = compiled(lambda *parts: model.encode(_input_of(*parts)).tensors) if halves else None
        self._decoder = compiled(lambda *parts: _decode(model, *parts)) if halves else None
        self._keeper = compiled(lambda *parts: model.predict_and_keep(_input_of(*parts))) if captured else None
        self._reuser = compiled(lambda kept, *parts: model.predict_from(_input_of(*parts), kept)) if captured else None
        self._sizes: dict[BatchKey, tuple[int, ...]] = {}
        self._shapes: set[_Shapes] = set()
        self._half_shapes: set[_Shapes] = set()

    def warm(self, key: BatchKey, batch_sizes: Sequence[int]) -> None:
        """Compile for these numbers of requests; seconds to minutes each. Call it on the engine's thread, which owns
        the CUDA graphs."""
        for size in sorted(batch_sizes):
            inputs = example_input(self._model, key, size * rows_of(key))
            for number in range(3):  # CUDA graphs: a warm-up, the recording, a replay
                self._run(inputs)
                # Captured halves take much memory: they are recorded once requests need them.
                if not number or not self._is_captured:
                    self._warm_halves(inputs)
            self._shapes.add(_shapes_of(inputs))
            self._sizes[key] = (*self.sizes(key), size)

    def sizes(self, key: BatchKey) -> tuple[int, ...]:
        """Return the batch sizes that run compiled, ascending."""
        return self._sizes.get(key, ())

    def padded(self, key: BatchKey, request_count: int) -> int:
        """Return the next warm batch size, or `request_count` if there is none."""
        return next((size for size in self.sizes(key) if size >= request_count), request_count)

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction, compiled if its shape is warm, else eager."""
        if inputs.residuals is not None and self._has_halves(inputs):
            return self.decode(inputs, self.encode(inputs))
        is_known = self._is_captured or _shapes_of(inputs) in self._shapes
        if inputs.residuals is not None or inputs.runs_eagerly or not is_known:
            return self._model.predict(inputs)
        return self._run(inputs)

    def predict_and_keep(self, inputs: DenoiserInput) -> tuple[Tensor, Tensor | None]:
        """Return the prediction and the deep features, captured if all passes are, else eager."""
        if self._keeper is None or inputs.residuals is not None or inputs.runs_eagerly:
            return super().predict_and_keep(inputs)
        prediction, features = self._keeper(*_arguments_of(inputs))
        return prediction.clone(), features if features is None else features.clone()

    def predict_from(self, inputs: DenoiserInput, features: Tensor) -> Tensor:
        """Return the prediction from deep features, captured if all passes are, else eager."""
        if self._reuser is None or inputs.runs_eagerly:
            return super().predict_from(inputs, features)
        prediction: Tensor = self._reuser(features, *_arguments_of(inputs))
        return prediction.clone()

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the pass's first half, compiled if its shape is warm, else eager."""
        return self._run_encoder(inputs) if self._has_halves(inputs) else self._model.encode(inputs)

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction from an encoding, compiled if its shape is warm and it has residuals, else eager."""
        if inputs.residuals is None or not encoding.tensors or not self._has_halves(inputs):
            return self._model.decode(inputs, encoding)
        return self._run_decoder(inputs, encoding, inputs.residuals)

    def release_memory(self) -> None:
        """Drop the captured passes; repeated passes are captured again."""
        for function in (self._forward, self._encoder, self._decoder, self._keeper, self._reuser):
            if isinstance(function, ReplayedFunction):
                function.forget()

    def _has_halves(self, inputs: DenoiserInput) -> bool:
        shapes = self._half_shapes
        return not inputs.runs_eagerly and (_shapes_of(inputs) in shapes or (self._is_captured and bool(shapes)))

    def _warm_halves(self, inputs: DenoiserInput) -> None:
        if self._encoder is None:
            return
        encoding = self._run_encoder(inputs)
        if (residuals := self._model.example_residuals(encoding)) is not None:
            self._run_decoder(inputs, encoding, residuals)
            self._half_shapes.add(_shapes_of(inputs))

    def _run(self, inputs: DenoiserInput) -> Tensor:
        prediction: Tensor = self._forward(*_arguments_of(inputs))
        return prediction.clone() if self._is_captured else prediction

    def _run_encoder(self, inputs: DenoiserInput) -> DenoiserEncoding:
        assert self._encoder is not None
        tensors: tuple[Tensor, ...] = self._encoder(*_arguments_of(inputs))
        return DenoiserEncoding(tuple(tensor.clone() if self._is_captured else tensor for tensor in tensors))

    def _run_decoder(self, inputs: DenoiserInput, encoding: DenoiserEncoding, residuals: ControlResiduals) -> Tensor:
        assert self._decoder is not None
        prediction: Tensor = self._decoder(encoding.tensors, residuals.tensors, *_arguments_of(inputs))
        return prediction.clone() if self._is_captured else prediction


def _decode(
    model: DiffusionModel, encoded: tuple[Tensor, ...], residuals: tuple[Tensor, ...], *parts: Tensor | None
) -> Tensor:
    inputs = replace(_input_of(*parts), residuals=ControlResiduals(residuals[:-1], residuals[-1]))
    return model.decode(inputs, DenoiserEncoding(encoded))


def _arguments_of(inputs: DenoiserInput) -> tuple[Tensor | None, ...]:
    return (inputs.latents, inputs.timesteps, inputs.time_terms, *inputs.conditioning.parts)


def _input_of(*parts: Any) -> DenoiserInput:
    latents, timesteps, terms, states, *texts = parts
    return DenoiserInput(latents, timesteps, Conditioning(states, *texts), time_terms=terms)


def batch_sizes_up_to(most: int) -> tuple[int, ...]:
    """Return the powers of two below `most`, and `most`: padding never doubles a batch."""
    powers = [2**exponent for exponent in range(most.bit_length()) if 2**exponent < most]
    return (*powers, most)
