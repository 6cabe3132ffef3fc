"""Measure the memory of forward passes before serving, with inputs shaped as real ones."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch.overrides import TorchFunctionMode

from pentimento.diffusion.device import peak_bytes_of, used_bytes
from pentimento.diffusion.engine.faults import is_out_of_memory
from pentimento.diffusion.engine.limits import MemoryModel, MemoryPoint, fit_memory, rows_of
from pentimento.diffusion.families.model import BatchKey, Conditioning, DenoiserInput, DiffusionModel
from pentimento.diffusion.inpainting import masked_channels


def example_input(model: DiffusionModel, key: BatchKey, row_count: int) -> DenoiserInput:
    """Return noise in the middle of a schedule, conditioned on the empty prompt. Only in inference mode."""
    shape = (row_count, *model.latent_shape(key.width_px, key.height_px)[1:])
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(model.device, model.dtype)
    timestep = model.info.train_step_count // 2
    timesteps = torch.full((row_count,), timestep, dtype=torch.float32, device=model.device)
    row = model.conditioning(model.encode_prompt(""), key.width_px, key.height_px)
    if model.info.sees_mask:
        row = replace(row, masked=masked_channels(latents[:1], latents[:1, :1]))
    texts = model.project(Conditioning.concatenate([row] * row_count))
    return DenoiserInput(latents, timesteps, texts, time_terms=model.time_terms(timestep, row_count))


class Interrupted(BaseException):
    """Report that a measurement stopped because a request needs the thread.

    Not an Exception: it is raised inside libraries too, which handle any Exception there as an error of their caller.
    """


class _Interruptible(TorchFunctionMode):
    """Raise Interrupted before an operation of this thread once `wanted()` is true."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        super().__init__()
        self._wanted = wanted

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        if self._wanted():
            raise Interrupted
        return func(*args, **(kwargs if isinstance(kwargs, dict) else {}))


class MemoryProbe:
    """Measure the memory of forward passes, one batch size after the other, ascending. No size is pending after the
    first that the device has no memory for, or if memory cannot be measured."""

    def __init__(
        self,
        model: DiffusionModel,
        predict: Callable[[DenoiserInput], object],
        key: BatchKey,
        batch_sizes: Sequence[int],
    ) -> None:
        self._model = model
        self._predict = predict
        self._key = key
        self._points: list[MemoryPoint] = []
        self._decoder_bytes_per_pixel: float | None = None
        self.pending = tuple(sorted(batch_sizes))

    def memory(self) -> MemoryModel | None:
        """Return the memory model from the measurements so far; None if memory cannot be measured. From a single batch
        size it is a bound: all memory of the process counts as the cost of its rows."""
        if not self._points or self._decoder_bytes_per_pixel is None:
            return None
        return fit_memory(self._points, self._decoder_bytes_per_pixel)

    def measure_next(
        self, wanted: Callable[[], bool] | None = None, half_done: Callable[[], None] = lambda: None
    ) -> None:
        """Measure the smallest pending batch size. Raises Interrupted once `wanted()` is true; the size stays
        pending."""
        size, *rest = self.pending
        rows = size * rows_of(self._key)
        try:
            with _Interruptible(wanted) if wanted is not None else nullcontext():
                inputs = example_input(self._model, self._key, rows)
                self._predict(inputs)  # one-time allocations must not count as the cost of a row
                half_done()
                peak = peak_bytes_of(self._model.device, partial(self._predict, inputs))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.pending = ()
            return
        self.pending = tuple(rest) if peak is not None else ()
        if peak is not None:
            self._points.append(MemoryPoint(rows, self._key.width_px * self._key.height_px, peak))

    def measure_decoder(self) -> None:
        """Measure the decoder, which may run during a forward pass."""
        model, key = self._model, self._key
        before = used_bytes(model.device)
        latent = torch.zeros(model.latent_shape(key.width_px, key.height_px), dtype=model.dtype, device=model.device)
        peak = peak_bytes_of(model.device, lambda: model.decode_latent(latent))
        if before is not None and peak is not None:
            self._decoder_bytes_per_pixel = max(peak - before, 0) / (key.width_px * key.height_px)
