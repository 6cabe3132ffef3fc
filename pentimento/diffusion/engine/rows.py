"""Hold the rows of one group's forward passes in buffers that are allocated once, and apply their LoRAs.

A request occupies a slot while it is in the batch; its conditioning is copied there when it enters, its latent and
timestep before each step. Slots are filled from the front, so that a batch is always the buffers' first rows: the last
or a new request takes a free slot. Slots depend only on the batches so far: the same history gives the same rows and so
the same bits.

Rows of requests without ControlNet residuals get zeros, which leaves their prediction unchanged. If no request has
residuals, the forward pass receives none.

LoRAs are patched into the weights if all running requests share one set, else applied by row. LoHa, LoKr and DoRA have
no small factors, so a row cannot have them apart: requests with them run in separate passes, with the weights patched
for each.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pentimento.diffusion.denoising import Denoising, fill_model_input
from pentimento.diffusion.engine.job import EngineJob
from pentimento.diffusion.families.image_prompts import ImagePrompt, ImagePromptRows, stack_image_prompts
from pentimento.diffusion.families.model import (
    AsAlone,
    Conditioning,
    ControlResiduals,
    DenoiserInput,
    DiffusionModel,
    filled_up,
)
from pentimento.diffusion.families.row_updates import PerSampleAdapters
from pentimento.diffusion.loras.lora import patched_key, set_key
from pentimento.diffusion.loras.patching import RowUpdates, WeightPatch, stack_adapters
from pentimento.diffusion.packed_weights import is_packed
from pentimento.diffusion.schedulers import SamplerState, Schedule


def stack_residuals(
    parts: Sequence[ControlResiduals | None], rows_each: int, row_count: int
) -> ControlResiduals | None:
    """Return the residuals of all rows, for a transformer only the blocks that every part has by now; None if no part
    has any. Residuals of one request that fills all rows are returned without a copy: for SDXL they are 108 MiB. Raises
    ValueError if residuals of two requests differ in blocks or shape, or do not have `rows_each` rows."""
    present = [part if part is not None and _blocks(part) != _NO_BLOCKS else None for part in parts]
    example = next((part for part in present if part is not None), None)
    if example is None:
        return None
    if len(parts) == 1 and rows_each == row_count:
        for tensor in example.tensors:
            if tensor.shape[0] != rows_each:
                raise ValueError(f"residuals of shape {list(tensor.shape)}, wanted {rows_each} rows")
        return example
    for part in present:
        if part is not None and _blocks(part) != _blocks(example):
            raise ValueError(f"residuals for {_blocks(part)} (down, mid, other) blocks, wanted {_blocks(example)}")
    there = min(len(part.tensors) for part in present if part is not None)
    flat = [(None,) * there if part is None else part.tensors[:there] for part in present]
    stacked = [
        _stack(column, first, rows_each, row_count)
        for column, first in zip(zip(*flat, strict=True), example.tensors[:there], strict=True)
    ]
    down, mid, blocks = _blocks(example)
    behind = tuple(stacked[down + mid :])
    return ControlResiduals(tuple(stacked[:down]), stacked[down] if mid else None, behind, blocks - len(behind))


_NO_BLOCKS = (0, 0, 0)


def _blocks(part: ControlResiduals) -> tuple[int, int, int]:
    """Return the numbers of down, mid and other blocks that a part has or will have residuals for. A part without any
    controls nothing at its step."""
    return len(part.down_block_residuals), int(part.mid_block_residual is not None), part.block_count


def _stack(parts: Iterable[Tensor | None], example: Tensor, rows_each: int, row_count: int) -> Tensor:
    rows = example.new_zeros((row_count, *example.shape[1:]))
    for part, target in zip(parts, rows.split(rows_each), strict=False):
        if part is not None:
            if part.shape != target.shape:
                raise ValueError(f"residuals of shape {list(part.shape)}, wanted {list(target.shape)}")
            target.copy_(part)
    return rows


class RowBuffers:
    """Hold the input tensors of up to `capacity` requests shaped as `example`; `padded` returns the number of requests
    computed for a batch of n, if only some sizes are compiled."""

    def __init__(
        self, model: DiffusionModel, example: Denoising, capacity: int, padded: Callable[[int], int] = lambda n: n
    ) -> None:
        self.rows_each = example.row_count
        self._model = model
        self._padded = padded
        rows = padded(capacity) * self.rows_each
        latent = example.state.latent
        self._latents = latent.new_zeros((rows, *latent.shape[1:]), dtype=model.dtype)
        self._timesteps = torch.zeros(rows, dtype=torch.float32, device=model.device)
        self._conditioning = _like(example.seen, rows)
        terms = model.time_terms(example.timestep, self.rows_each)
        self._terms = terms.new_zeros((rows, *terms.shape[1:])) if terms is not None else None
        self._latent_slots = self._latents.split(self.rows_each)
        self._timestep_slots = self._timesteps.split(self.rows_each)
        self._conditioning_slots = _slots(self._conditioning, self.rows_each)
        self._term_slots = self._terms.split(self.rows_each) if self._terms is not None else ()
        # The state and schedule of the step that a slot's input was filled for, by slot.
        self._filled: list[tuple[SamplerState, Schedule] | None] = [None] * len(self._latent_slots)
        self._filled_terms: list[Tensor | None] = [None] * len(self._latent_slots)
        self._inputs: dict[int, DenoiserInput] = {}
        self._seats: list[EngineJob | None] = []
        self._adapter_rows: list[PerSampleAdapters | None] = []
        self._adapters: PerSampleAdapters | None = None
        self._image_parts: tuple[tuple[tuple[ImagePrompt, ...], ...], int] = ((), 0)
        self._image_rows: tuple[ImagePromptRows, ...] = ()

    def seat(self, jobs: Sequence[EngineJob]) -> list[EngineJob]:
        """Return the batch's requests in the order of their rows; a request keeps its slot if possible."""
        wanted = set(jobs)
        kept = {slot: job for slot, job in enumerate(self._seats) if job in wanted and slot < len(jobs)}
        standing = [job for job in [*reversed(self._seats), *jobs] if job in wanted and job not in kept.values()]
        free = (slot for slot in range(len(jobs)) if slot not in kept)
        for slot, job in zip(free, dict.fromkeys(standing), strict=True):
            parts = (part for part in job.begun.seen.parts if part is not None)
            for part, target in zip(parts, self._conditioning_slots[slot], strict=True):
                target.copy_(part)
            kept[slot] = job
        self._seats = [kept[slot] for slot in range(len(jobs))]
        return [kept[slot] for slot in range(len(jobs))]

    def leave(self, job: EngineJob) -> None:
        """Free the slot of a request that has ended."""
        self._seats = [None if seated is job else seated for seated in self._seats]
        self._filled = [None] * len(self._filled)

    def input(self, jobs: Sequence[EngineJob], *, controlled: bool = True) -> DenoiserInput:
        """Return the input of the next step of all `jobs`, in the order of their slots; without residuals unless
        `controlled`."""
        for place, job in enumerate(jobs):
            self._fill(place, job.begun)
        rows = self._padded(len(jobs)) * self.rows_each
        plain = self._inputs.get(rows) or self._view(rows)
        parts = [job.residuals if controlled else None for job in jobs]
        residuals = stack_residuals(parts, self.rows_each, rows)
        adapters = self._stacked([job.adapter_row for job in jobs])
        as_alone = self._as_alone(jobs)
        images = self._images_of(jobs, rows)
        return replace(plain, residuals=residuals, adapters=adapters, as_alone=as_alone, image_prompts=images)

    def features(self, jobs: Sequence[EngineJob]) -> Tensor:
        """Return the deep features that all `jobs` reuse, in the order of their slots, padded as their input."""
        parts = [job.begun.features for job in jobs if job.begun.features is not None]
        return filled_up(torch.cat(parts), self._padded(len(jobs)) * self.rows_each)

    def _fill(self, place: int, denoising: Denoising) -> None:
        """Fill a slot with the input of the request's next step, unless its first half already did."""
        step = (denoising.state, denoising.schedule)
        filled = self._filled[place]
        if filled is None or filled[0] is not step[0] or filled[1] is not step[1]:
            self._filled[place] = step
            fill_model_input(denoising, self._latent_slots[place], self._timestep_slots[place])
        if self._term_slots:
            terms = self._model.time_terms(denoising.timestep, self.rows_each)
            # The terms change with the weights that compute them.
            if terms is not None and terms is not self._filled_terms[place]:
                self._filled_terms[place] = terms
                self._term_slots[place].copy_(terms)

    def _stacked(self, parts: list[PerSampleAdapters | None]) -> PerSampleAdapters | None:
        """Return the LoRAs of all rows; the last result again if the same adapter rows are in the same slots."""
        same = len(parts) == len(self._adapter_rows)
        if not same or any(one is not other for one, other in zip(parts, self._adapter_rows, strict=True)):
            self._adapter_rows, self._adapters = parts, stack_adapters(parts, self.rows_each)
        return self._adapters

    def _images_of(self, jobs: Sequence[EngineJob], row_count: int) -> tuple[ImagePromptRows, ...]:
        """Return the image prompts of all rows; the last result again for the same requests in the same slots."""
        parts = tuple(job.request.image_prompts for job in jobs)
        if not any(parts):
            return ()
        if self._image_parts != (parts, row_count):
            self._image_parts = (parts, row_count)
            self._image_rows = stack_image_prompts(parts, self.rows_each, row_count)
        return self._image_rows

    def _as_alone(self, jobs: Sequence[EngineJob]) -> AsAlone | None:
        """Return the requests to compute with the bits they have alone. With two rows each, all: it costs almost
        nothing. With single rows, only those with a next step that amplifies rounding: small convolutions of one row
        use another kernel, a third slower in batches than the one for many rows."""
        guided = self.rows_each > 1
        pictures = tuple(place for place, job in enumerate(jobs) if guided or job.begun.step_amplifies_rounding)
        return AsAlone(self.rows_each, pictures) if pictures and len(jobs) > 1 else None

    def _view(self, rows: int) -> DenoiserInput:
        texts = _map(self._conditioning, lambda part: part[:rows])
        terms = self._terms[:rows] if self._terms is not None else None
        view = DenoiserInput(self._latents[:rows], self._timesteps[:rows], texts, time_terms=terms)
        self._inputs[rows] = view
        return view


def _map(conditioning: Conditioning, change: Callable[[Tensor], Tensor]) -> Conditioning:
    states, *others = conditioning.parts
    return Conditioning(change(states), *(change(part) if part is not None else None for part in others))


def _like(example: Conditioning, rows: int) -> Conditioning:
    return _map(example, lambda part: part.new_zeros((rows, *part.shape[1:])))


def _slots(buffers: Conditioning, rows_each: int) -> list[tuple[Tensor, ...]]:
    """Return the views of all present parts, by slot."""
    return list(zip(*(part.split(rows_each) for part in buffers.parts if part is not None), strict=True))


class DenoiserAdapters:
    """Hold the denoiser's LoRAs. A patch costs one product per layer once, and nothing in a step; an adapter row
    outside the weights costs a few percent of every step, and lets a batch mix sets. One thread only."""

    def __init__(self, model: DiffusionModel) -> None:
        self._component = next(iter(model.adaptable))
        # Packed weights cannot be changed in place: every set runs by row.
        self._patches = not is_packed(model.denoiser)
        self._patch = WeightPatch(model.denoiser, self._component, model.forget_time_terms)
        self._rows = RowUpdates(model.device, model.dtype)

    def patched(self, job: EngineJob) -> tuple[tuple[str, float], ...]:
        """Return the key of the request's LoRAs if the weights must have them; empty if a row can have them apart."""
        return patched_key(job.adapters, self._component)

    def settle(self, jobs: Sequence[EngineJob]) -> None:
        """Patch the weights with the set that all `jobs` share; restore the base weights if their sets differ. Packed
        weights stay unchanged."""
        if not self._patches:
            return
        sets = {set_key(job.adapters, self._component): job.adapters for job in jobs}
        self._patch.hold(next(iter(sets.values())) if len(sets) == 1 else ())

    def row(self, job: EngineJob) -> PerSampleAdapters | None:
        """Return the request's LoRAs as one adapter row; None if the weights hold its set. Call it only after `settle`
        with the request among its jobs."""
        return None if self._patch.holds(job.adapters) else self._rows.of(job.adapters, self._component)

    def forget_but(self, jobs: Sequence[EngineJob]) -> bool:
        """Drop the adapter rows that none of the jobs uses; return whether any were dropped."""
        return self._rows.forget_but([job.adapter_row for job in jobs])

    def restore(self) -> None:
        """Restore the network's base weights."""
        self._patch.hold(())
