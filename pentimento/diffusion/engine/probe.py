"""Measure the memory of forward passes before serving, with inputs shaped as real ones, and limit the requests of a
pass: to the batch that fits the memory budget, and to fewer after the device ran out of memory. Turn failures of a step
into errors that a caller can act on."""

import errno
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pentimento.diffusion.device import peak_bytes_of, used_bytes
from pentimento.diffusion.families.model import BatchKey, Conditioning, DenoiserInput, DiffusionModel
from pentimento.diffusion.inpainting import masked_channels
from pentimento.domain.errors import Internal, InvalidArgument, PentimentoError, ResourceExhausted
from pentimento.domain.reasons import Reason

logger = logging.getLogger(__name__)


# torch's CPU allocator raises RuntimeError, recognised by this text.
_CPU_ALLOCATOR = "DefaultCPUAllocator"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error reports that the device, or a host that runs the model, is out of memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or _CPU_ALLOCATOR in str(error)


def release_unused(device: torch.device) -> None:
    """Return the blocks cached by torch's allocator to the device: fragments of a large batch may block small ones.
    Call it after the error is handled: its traceback holds the failed pass's tensors."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def as_typed(error: Exception) -> PentimentoError:
    """Return the error as a PentimentoError: out of memory, or a defect."""
    if isinstance(error, PentimentoError):
        return error
    if is_out_of_memory(error):
        return out_of_memory()
    # Only the class: messages of libraries may quote their input, and prompts never reach a log.
    logger.error("a denoising step raised %s", type(error).__name__)
    return Internal("STEP_FAILED", f"a denoising step raised {type(error).__name__}")


def out_of_memory() -> PentimentoError:
    """Return the error of an image that does not fit the device's memory."""
    return ResourceExhausted(Reason.DEVICE_OUT_OF_MEMORY, "the image does not fit the device's memory")


def not_finite() -> PentimentoError:
    """Return the error of a prediction with NaN or infinite values."""
    return Internal("NON_FINITE_LATENT", "the model produced values that are not finite")


def finite_parts(prediction: Tensor, part_count: int) -> list[bool]:
    """Return for each of `part_count` equal parts of the rows whether all its values are finite."""
    if not part_count or _all_finite(prediction):
        return [True] * part_count
    return [_all_finite(part) for part in prediction.chunk(part_count)]


def _all_finite(values: Tensor) -> bool:
    """Return whether all values are finite. Minimum and maximum propagate NaN: one pass, ten times as fast as a tensor
    of booleans."""
    lowest, highest = torch.aminmax(values)
    return math.isfinite(lowest) and math.isfinite(highest)


# The batch stays halved for this long after the device ran out of memory: the memory may become free again.
RECOVERY_S = 60.0
_MIB = 2**20


@dataclass(frozen=True)
class MemoryPoint:
    """Hold one measurement: the peak device memory in bytes of a pass over `rows` rows of `pixels` pixels."""

    rows: int
    pixels: int
    peak_bytes: int

    @property
    def area(self) -> int:
        """Return rows times pixels."""
        return self.rows * self.pixels


@dataclass(frozen=True)
class MemoryModel:
    """Model the peak bytes of denoising rows of one size as `fixed_bytes + area * bytes_per_pixel`. The area is rows
    times pixels of the image: activations grow with both (attention too, unless it is materialised). An image of that
    size may be decoded at the same time."""

    fixed_bytes: float
    bytes_per_pixel: float
    decoder_bytes_per_pixel: float = 0.0

    def peak_bytes(self, rows: int, pixels: int) -> float:
        """Return the expected peak bytes for `rows` rows of `pixels` pixels each."""
        return self.fixed_bytes + pixels * (rows * self.bytes_per_pixel + self.decoder_bytes_per_pixel)


def fit_memory(points: Sequence[MemoryPoint], decoder_bytes_per_pixel: float = 0.0) -> MemoryModel:
    """Return the line with the steepest slope between any two points, raised until no point lies above it: it never
    predicts less than was measured.

    A single point does not determine the slope: all its bytes count as slope.
    """
    slopes = [(b.peak_bytes - a.peak_bytes) / (b.area - a.area) for a in points for b in points if b.area > a.area]
    slope = max(0.0, *slopes) if slopes else max(point.peak_bytes / point.area for point in points)
    fixed = max(point.peak_bytes - slope * point.area for point in points)
    return MemoryModel(fixed, slope, decoder_bytes_per_pixel)


@dataclass(frozen=True)
class MemoryBudget:
    """Hold the device's `total_bytes`, which weights and activations share according to `model`."""

    total_bytes: int
    model: MemoryModel

    def largest_batch(self, pixels: int, rows_each: int, most: int) -> int:
        """Return how many requests of `rows_each` rows fit, 0..most."""
        fitting = (n for n in range(most, 0, -1) if self.model.peak_bytes(n * rows_each, pixels) <= self.total_bytes)
        return next(fitting, 0)


def rows_of(key: BatchKey) -> int:
    """Return the rows of one request: 2 with guidance (unconditional and conditional), else 1."""
    return 2 if key.guided else 1


class BatchLimits:
    """Limit the requests per forward pass by batch key. Any thread may call `limit`; the rest is the engine's.
    `reserved_bytes` of the budget are another model's for now."""

    def __init__(self, max_batch: int, budget: MemoryBudget | None, monotonic: Callable[[], float]) -> None:
        self.max_batch = max_batch
        self._budget = budget
        self._monotonic = monotonic
        self._shrunk: dict[BatchKey, tuple[int, float]] = {}
        self.reserved_bytes = 0

    def set_budget(self, budget: MemoryBudget | None) -> None:
        """Replace the budget, once memory has been measured."""
        self._budget = budget

    def limit(self, key: BatchKey) -> int:
        """Return the number of requests of a key that may share a pass, at least 1: `check` rejects a request that
        never fits."""
        count, until = self._shrunk.get(replace(key, patched=()), (self.max_batch, 0.0))
        most = self.max_batch if self._monotonic() >= until else count
        if self._budget is None:
            return most
        budget = replace(self._budget, total_bytes=self._budget.total_bytes - self.reserved_bytes)
        return max(budget.largest_batch(key.width_px * key.height_px, rows_of(key), most), 1)

    def check(self, key: BatchKey) -> None:
        """Raise InvalidArgument naming the size and the budget when a request of this key never fits."""
        budget = self._budget
        pixels = key.width_px * key.height_px
        if budget is None or budget.largest_batch(pixels, rows_of(key), 1):
            return
        needed = budget.model.peak_bytes(rows_of(key), pixels) / _MIB
        raise InvalidArgument.of(
            "spec.width_px",
            f"{key.width_px}x{key.height_px} pixels {'with' if key.guided else 'without'} guidance need about "
            f"{needed:.0f} MiB, above the memory budget of {budget.total_bytes / _MIB:.0f} MiB of this worker",
        )

    def ran_out(self, key: BatchKey, request_count: int) -> None:
        """Halve the limit for `RECOVERY_S` after the device had no memory for `request_count` requests."""
        self._shrunk[key] = (max(request_count // 2, 1), self._monotonic() + RECOVERY_S)


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


@dataclass(frozen=True)
class ProbedMemory:
    """Hold the measurements of a probe, to continue them when the process loads the model again."""

    pending: tuple[int, ...]
    points: tuple[MemoryPoint, ...] = ()
    decoder_bytes_per_pixel: float | None = None


class MemoryProbe:
    """Measure the memory of forward passes, one batch size after the other, ascending. No size is pending after the
    first that the device has no memory for, or if memory cannot be measured. `other_bytes` of the memory are another
    model's, which leaves."""

    def __init__(
        self,
        model: DiffusionModel,
        predict: Callable[[DenoiserInput], object],
        key: BatchKey,
        begun: ProbedMemory,
        other_bytes: int = 0,
    ) -> None:
        self._model = model
        self._predict = predict
        self._key = key
        self._points = list(begun.points)
        self._decoder_bytes_per_pixel = begun.decoder_bytes_per_pixel
        self.pending = tuple(sorted(begun.pending))
        self.other_bytes = other_bytes

    @property
    def probed(self) -> ProbedMemory:
        """Return the measurements so far."""
        return ProbedMemory(self.pending, tuple(self._points), self._decoder_bytes_per_pixel)

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
            own = max(peak - self.other_bytes, 0)
            self._points.append(MemoryPoint(rows, self._key.width_px * self._key.height_px, own))

    def measure_decoder(self) -> None:
        """Measure the decoder, which may run during a forward pass."""
        model, key = self._model, self._key
        before = used_bytes(model.device)
        latent = torch.zeros(model.latent_shape(key.width_px, key.height_px), dtype=model.dtype, device=model.device)
        peak = peak_bytes_of(model.device, lambda: model.decode_latent(latent))
        if before is not None and peak is not None:
            self._decoder_bytes_per_pixel = max(peak - before, 0) / (key.width_px * key.height_px)
