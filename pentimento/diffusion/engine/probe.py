"""What a forward pass takes before anybody asks for one: inputs shaped as real ones, and the memory they need."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from pentimento.diffusion.engine.faults import is_out_of_memory
from pentimento.diffusion.engine.limits import MemoryModel, MemoryPoint, fit_memory, rows_of
from pentimento.diffusion.families.model import BatchKey, Conditioning, DenoiserInput, DiffusionModel
from pentimento.diffusion.peak_memory import peak_bytes_of, used_bytes


def example_input(model: DiffusionModel, key: BatchKey, row_count: int) -> DenoiserInput:
    """Noise in the middle of a schedule, conditioned on the empty prompt. In inference mode only."""
    shape = (row_count, *model.latent_shape(key.width_px, key.height_px)[1:])
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(model.device, model.dtype)
    timesteps = torch.full((row_count,), model.info.train_step_count // 2, dtype=torch.float32, device=model.device)
    row = model.conditioning(model.encode_prompt(""), key.width_px, key.height_px)
    return DenoiserInput(latents, timesteps, Conditioning.concatenate([row] * row_count))


def measure_memory(
    model: DiffusionModel, predict: Callable[[DenoiserInput], object], key: BatchKey, batch_sizes: Sequence[int]
) -> MemoryModel | None:
    """What forward passes of these numbers of requests need, up to the first that the device has no memory for, and
    the decoder, which may run beside them. None where memory cannot be measured."""
    points = list(_points(model, predict, key, batch_sizes))
    before = used_bytes(model.device)
    pixels = key.width_px * key.height_px
    latent = torch.zeros(model.latent_shape(key.width_px, key.height_px), dtype=model.dtype, device=model.device)
    decoding = peak_bytes_of(model.device, lambda: model.decode_latent(latent))
    if not points or before is None or decoding is None:
        return None
    return fit_memory(points, decoder_bytes_per_pixel=max(decoding - before, 0) / pixels)


def _points(
    model: DiffusionModel, predict: Callable[[DenoiserInput], object], key: BatchKey, batch_sizes: Sequence[int]
) -> Iterator[MemoryPoint]:
    for size in sorted(batch_sizes):
        rows = size * rows_of(key)
        try:
            inputs = example_input(model, key, rows)
            predict(inputs)  # what is made only once must not look like the price of a row
            peak = peak_bytes_of(model.device, partial(predict, inputs))
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                return
            raise
        if peak is not None:
            yield MemoryPoint(rows, key.width_px * key.height_px, peak)
