"""Turn failures of a denoising step into errors that a caller can act on."""

import errno
import logging
import math

import torch
from torch import Tensor

from pentimento.domain.errors import Internal, PentimentoError, ResourceExhausted
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
