"""What a forward pass takes before anybody asks for one: inputs shaped as real ones, and the memory they need."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch.overrides import TorchFunctionMode

from pentimento.diffusion.engine.faults import is_out_of_memory
from pentimento.diffusion.engine.limits import MemoryModel, MemoryPoint, fit_memory, rows_of
from pentimento.diffusion.families.model import BatchKey, Conditioning, DenoiserInput, DiffusionModel
from pentimento.diffusion.inpainting import masked_channels
from pentimento.diffusion.peak_memory import peak_bytes_of, used_bytes


def example_input(model: DiffusionModel, key: BatchKey, row_count: int) -> DenoiserInput:
    """Return noise in the middle of a schedule, conditioned on the empty prompt. In inference mode only."""
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
    """A measurement was given up because a request needs the thread.

    No Exception: it is raised inside libraries too, which take any Exception there for a mistake of their caller.
    """


class _Interruptible(TorchFunctionMode):
    """Looks before every operation of this thread whether somebody wants it."""

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
    """Measures what forward passes need, one number of requests after the other, ascending. Nothing is pending any more
    after the first that the device has no memory for, or where memory cannot be measured."""

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
        """Return the model of memory from what was measured so far; None where memory cannot be measured. From one
        batch size alone it is a bound: all that the process had counts as the price of a row."""
        if not self._points or self._decoder_bytes_per_pixel is None:
            return None
        return fit_memory(self._points, self._decoder_bytes_per_pixel)

    def measure_next(
        self, wanted: Callable[[], bool] | None = None, half_done: Callable[[], None] = lambda: None
    ) -> None:
        """Measure the smallest number that is pending. As soon as `wanted` says so it raises Interrupted, and the
        number stays pending."""
        size, *rest = self.pending
        rows = size * rows_of(self._key)
        try:
            with _Interruptible(wanted) if wanted is not None else nullcontext():
                inputs = example_input(self._model, self._key, rows)
                self._predict(inputs)  # what is made only once must not look like the price of a row
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
        """Measure the decoder, which may run beside a forward pass."""
        model, key = self._model, self._key
        before = used_bytes(model.device)
        latent = torch.zeros(model.latent_shape(key.width_px, key.height_px), dtype=model.dtype, device=model.device)
        peak = peak_bytes_of(model.device, lambda: model.decode_latent(latent))
        if before is not None and peak is not None:
            self._decoder_bytes_per_pixel = max(peak - before, 0) / (key.width_px * key.height_px)
