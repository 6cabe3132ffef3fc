"""What goes wrong in a step, as errors that a caller can act on."""

import logging
import math

import torch
from torch import Tensor

from pentimento.domain.errors import Internal, PentimentoError, ResourceExhausted
from pentimento.domain.reasons import Reason

logger = logging.getLogger(__name__)

# torch's CPU allocator has no exception class of its own.
_CPU_ALLOCATOR = "DefaultCPUAllocator"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error says that the device is out of memory, or the host where the model runs there."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or _CPU_ALLOCATOR in str(error)


def release_unused(device: torch.device) -> None:
    """Give the blocks that torch's allocator keeps for later back to the device: what was cut for a large batch may lie
    in the way of small ones. To be called when the error is over, whose traceback holds the failed pass's tensors."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def as_typed(error: Exception) -> PentimentoError:
    """Return the error as one of ours: out of memory, or a defect."""
    if isinstance(error, PentimentoError):
        return error
    if is_out_of_memory(error):
        return out_of_memory()
    # The class only: messages of libraries may quote their input, and prompts never reach a log.
    logger.error("a denoising step raised %s", type(error).__name__)
    return Internal("STEP_FAILED", f"a denoising step raised {type(error).__name__}")


def out_of_memory() -> PentimentoError:
    """Return the error of a picture that the device has no memory for."""
    return ResourceExhausted(Reason.DEVICE_OUT_OF_MEMORY, "the image does not fit the device's memory")


def not_finite() -> PentimentoError:
    """Return the error of a picture whose prediction has NaN or infinities."""
    return Internal("NON_FINITE_LATENT", "the model produced values that are not finite")


def finite_parts(prediction: Tensor, part_count: int) -> list[bool]:
    """Return for each of so many equal parts of the rows whether all its values are finite."""
    if not part_count or _all_finite(prediction):
        return [True] * part_count
    return [_all_finite(part) for part in prediction.chunk(part_count)]


def _all_finite(values: Tensor) -> bool:
    """Both ends pass NaN on: one pass, and no tensor of booleans, which takes ten times as long."""
    lowest, highest = torch.aminmax(values)
    return math.isfinite(lowest) and math.isfinite(highest)
