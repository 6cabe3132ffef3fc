"""Forward passes recorded as CUDA graphs, and replayed (Katz, section 7). A graph reads and writes the very memory that
it was recorded with: what a pass is called with is copied into buffers kept for its shapes."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pentimento.domain.errors import FailedPrecondition

logger = logging.getLogger(__name__)

# Combinations of shapes whose recordings one function keeps: some sizes times the batch sizes.
KEPT_RECORDINGS = 64


class PassRecording(Protocol):
    """What one run of a function did on the device."""

    @property
    def outputs(self) -> Any:
        """What the run returned; replays write there again."""
        ...

    def replay(self) -> None:
        """Do it again, with what the buffers hold now."""
        ...


# Runs a function without arguments, and returns what it did.
Recorder = Callable[[Callable[[], Any]], PassRecording]


class ReplayedFunction:
    """A function of tensors, None, and tuples of these, recorded once for each combination of shapes that it was called
    with more than `after` times. Results are valid until the next call of that combination. Of more than `kept`
    combinations the one that was called longest ago is forgotten. On one thread at a time."""

    def __init__(
        self, function: Callable[..., Any], recorder: Recorder, after: int = 0, kept: int = KEPT_RECORDINGS
    ) -> None:
        self._function = function
        self._recorder = recorder
        self._after = after
        self._kept = kept
        # By combination: how often it was called, or its recording, or None where there can be none.
        self._known: OrderedDict[tuple[Any, ...], int | _Recorded | None] = OrderedDict()

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns."""
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
        """Forget all recordings, and give their memory up."""
        self._known.clear()

    def _record(self, arguments: Any) -> "_Recorded | None":
        buffered = _cloned(arguments)
        try:
            return _Recorded(tuple(_tensors_in(buffered)), self._recorder(lambda: self._function(*buffered)))
        except torch.OutOfMemoryError:
            logger.warning("no memory to record a pass: it runs eagerly", extra={"reason": "NO_MEMORY"})
        except RuntimeError as error:
            # The class only: messages of libraries may quote their input.
            message = "a pass cannot be recorded, and runs eagerly: %s"
            logger.warning(message, type(error).__name__, extra={"reason": "NOT_RECORDED"})
        return None


@dataclass(frozen=True)
class _Recorded:
    """A recording, and the buffers that it reads."""

    buffers: tuple[Tensor, ...]
    recording: PassRecording


def replaying(recorder: Recorder, kept: int = KEPT_RECORDINGS) -> Callable[..., ReplayedFunction]:
    """Return what `CompiledDenoiser` takes in the place of torch.compile. Its options are not looked at. What is run
    three times is recorded: `CompiledDenoiser.warm` does, and a batch that comes again."""
    return lambda function, **options: ReplayedFunction(function, recorder, after=2, kept=kept)


def cuda_recorder(device: torch.device) -> Recorder:
    """Return what records CUDA graphs. All share one pool of memory, since none needs what another one computed. Raises
    FailedPrecondition (NO_CUDA) for any other device."""
    if device.type != "cuda":
        raise FailedPrecondition("NO_CUDA", f"CUDA graphs need a CUDA device; the model is on {device}")
    pool = torch.cuda.graph_pool_handle()
    return lambda function: _CudaPassRecording(function, pool)


class _CudaPassRecording:
    """One CUDA graph."""

    def __init__(self, function: Callable[[], Any], pool: Any) -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # Libraries choose their kernels and Triton compiles: none of it may happen while a graph is recorded.
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads go on meanwhile: pictures are decoded, conditions embedded.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self.outputs = function()

    def replay(self) -> None:
        """Do it again."""
        self._graph.replay()


def _tensors_in(value: Any) -> Any:
    """Yield the tensors of nested tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for part in value:
            yield from _tensors_in(part)


def _signature(value: Any) -> tuple[Any, ...]:
    """What must be the same for a recording to serve."""
    if isinstance(value, Tensor):
        return (value.dtype, *value.shape)
    return () if value is None else tuple((type(part), _signature(part)) for part in value)


def _cloned(value: Any) -> Any:
    """Copies of the tensors, laid out and nested as they were."""
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.preserve_format)
    return None if value is None else tuple(map(_cloned, value))
