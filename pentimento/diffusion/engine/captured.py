"""Record forward passes as CUDA graphs and replay them (Katz, section 7). A graph reads and writes the memory that it
was recorded with: the arguments of a pass are copied into buffers that are stored by shape."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pentimento.domain.errors import FailedPrecondition

logger = logging.getLogger(__name__)

# Shape combinations that one function stores recordings for: some image sizes times the batch sizes.
KEPT_RECORDINGS = 64


class PassRecording(Protocol):
    """Describe a recorded run of a function on the device."""

    @property
    def outputs(self) -> Any:
        """Return the outputs of the run; replays write to the same memory."""

    def replay(self) -> None:
        """Repeat the run with the current contents of the buffers."""


# Runs a function without arguments, and returns its recording.
Recorder = Callable[[Callable[[], Any]], PassRecording]


class ReplayedFunction:
    """Wrap a function of tensors, None, and nested tuples, recorded once per shape combination after `after` calls
    with it. Results are valid until the next call with that combination. Beyond `kept` combinations the least recently
    called one is dropped. One thread at a time."""

    def __init__(
        self, function: Callable[..., Any], recorder: Recorder, after: int = 0, kept: int = KEPT_RECORDINGS
    ) -> None:
        self._function = function
        self._recorder = recorder
        self._after = after
        self._kept = kept
        # The number of calls, or the recording, or None if it cannot be recorded, by combination.
        self._known: OrderedDict[tuple[Any, ...], int | _Recorded | None] = OrderedDict()

    def __call__(self, *arguments: Any) -> Any:
        signature = _signature(arguments)
        known = self._known.pop(signature, 0)
        if isinstance(known, int):
            known = known + 1 if known < self._after else self._record(arguments)
        self._known[signature] = known
        while len(self._known) > self._kept:
            self._known.popitem(last=False)
        if not isinstance(known, _Recorded):
            return self._function(*arguments)
        for buffer, tensor in zip(known.buffers, _tensors_in(arguments), strict=True):
            buffer.copy_(tensor)
        known.recording.replay()
        return known.recording.outputs

    def forget(self) -> None:
        """Drop all recordings and release their memory."""
        self._known.clear()

    def _record(self, arguments: Any) -> "_Recorded | None":
        buffered = _cloned(arguments)
        try:
            return _Recorded(tuple(_tensors_in(buffered)), self._recorder(lambda: self._function(*buffered)))
        except torch.OutOfMemoryError:
            logger.warning("no memory to record a pass: it runs eagerly", extra={"reason": "NO_MEMORY"})
        except RuntimeError as error:
            # Only the class: messages of libraries may quote their input.
            message = "a pass cannot be recorded, and runs eagerly: %s"
            logger.warning(message, type(error).__name__, extra={"reason": "NOT_RECORDED"})
        return None


@dataclass(frozen=True)
class _Recorded:
    """Hold a recording and the buffers that it reads."""

    buffers: tuple[Tensor, ...]
    recording: PassRecording


def replaying(recorder: Recorder, kept: int = KEPT_RECORDINGS) -> Callable[..., ReplayedFunction]:
    """Return a replacement for torch.compile in `CompiledDenoiser`. It ignores the options. A shape is recorded on its
    third run: `CompiledDenoiser.warm` runs it three times, and repeated batches get there too."""
    return lambda function, **options: ReplayedFunction(function, recorder, after=2, kept=kept)


def cuda_recorder(device: torch.device) -> Recorder:
    """Return a recorder of CUDA graphs. All graphs share one memory pool, since none reads another's results. Raises
    FailedPrecondition (NO_CUDA) for any other device."""
    if device.type != "cuda":
        raise FailedPrecondition("NO_CUDA", f"CUDA graphs need a CUDA device; the model is on {device}")
    pool = torch.cuda.graph_pool_handle()
    return lambda function: _CudaPassRecording(function, pool)


class _CudaPassRecording:
    def __init__(self, function: Callable[[], Any], pool: Any) -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # Libraries choose kernels and Triton compiles in the first runs; neither may happen during the recording.
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads keep running: they decode images and embed conditions.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self.outputs = function()

    def replay(self) -> None:
        """Repeat the run."""
        self._graph.replay()


def _tensors_in(value: Any) -> Any:
    """Yield the tensors of nested tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for part in value:
            yield from _tensors_in(part)


def _signature(value: Any) -> tuple[Any, ...]:
    """Return the key of the recording that serves a value: dtypes, shapes and nesting."""
    if isinstance(value, Tensor):
        return (value.dtype, *value.shape)
    return () if value is None else tuple((type(part), _signature(part)) for part in value)


def _cloned(value: Any) -> Any:
    """Return copies of the tensors with the same memory format and nesting."""
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.preserve_format)
    return None if value is None else tuple(map(_cloned, value))
