"""Pictures under ControlNets on processes of their own, timed: what each process computed and when, by its spans."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from lab.fixtures.controlled_painting import ControlledCase
from lab.fixtures.controlnet_serving import (
    ControlledByService,
    ServedControlNet,
    replica_process,
    serving_together,
    shared_folder,
)
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.worker_process import worker_process
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.generation import ControlNetSelection
from pentimento.telemetry.spans import Span, read_spans


@dataclass(frozen=True)
class Blocks:
    """How many a transformer has, and its ControlNets."""

    base: int
    control: int

    def ideal_s(self, base_s: float, control_s: float) -> float:
        """Return the least seconds of a step whose base model takes `base_s` by itself and its ControlNet `control_s`:
        the first residual is there as its block ends or the base model waits for it, and behind the last one come the
        blocks that are left."""
        block_s, part_s = base_s / self.base, control_s / self.control
        left = self.base - 1 - math.ceil((self.control - 1) * self.base / self.control)
        return max(base_s + max(part_s - block_s, 0.0), control_s + left * block_s)


@dataclass(frozen=True)
class OverlapSubject:
    """A model and its ControlNets, the picture that is painted with them, and how both services are started. `registry`
    is what the replicas read, each of them all of it."""

    name: str
    model: Path
    registry: Path
    controlnets: tuple[ControlNetSelection, ...]
    conditions: tuple[Tensor, ...]
    case: Case
    worker_module: str
    replica_module: str
    worker_flags: tuple[str, ...] = ()
    replica_flags: tuple[str, ...] = ()
    # Of a transformer and its ControlNets, whose residuals are needed block by block.
    blocks: Blocks | None = None


@dataclass(frozen=True)
class TimedPicture:
    """A picture under so many ControlNets. Means by step in seconds: of the worker's halves, or of its whole pass where
    nothing controls it; of the slowest ControlNet's pass, and of writing its residuals. `denoise_s` is the whole stage,
    with what opening the streams takes; `steady_s` a step once they are open. `device_s` computed, of all devices."""

    control_count: int
    step_count: int
    denoise_s: float
    steady_s: float
    encode_s: float
    decode_s: float
    whole_s: float
    control_s: float
    deliver_s: float
    device_s: float
    spans: tuple[Span, ...]
    # Its images were told to nobody before.
    new_images: bool = False
    # All that the worker's network computes in a step.
    model_s: float = 0.0
    blocks: Blocks | None = None

    @property
    def ideal_step_s(self) -> float:
        """max(C, E) + D; of a transformer what its blocks allow."""
        if self.blocks is not None:
            return self.blocks.ideal_s(self.model_s, self.control_s)
        return max(self.control_s, self.encode_s) + self.decode_s

    @property
    def serial_step_s(self) -> float:
        """C + E + D."""
        return self.control_s + self.model_s

    @property
    def share_of_ideal(self) -> float:
        """Its speed-up over C + E + D one after the other, as a share of the ideal one."""
        return self.ideal_step_s * self.step_count / self.denoise_s

    @property
    def steady_share(self) -> float:
        """The same of a step once the streams are open."""
        return self.ideal_step_s / self.steady_s


class OverlapBench:
    """The processes of one subject: the worker on one core, each ControlNet on a process of its own on the other."""

    def __init__(self, subject: OverlapSubject, served: ControlledByService, traces: Sequence[Path]) -> None:
        self._subject = subject
        self._served = served
        self._traces = tuple(traces)
        self._shift_px = 0

    async def timed(self, control_count: int, *, new_images: bool = False) -> TimedPicture:
        """Return a picture under the first so many ControlNets, which are told the subject's images, or such as nobody
        was told before. Raises what it fails with."""
        subject = self._subject
        controlled = ControlledCase(subject.case, (ControlSetting(),) * control_count)
        conditions: Sequence[Tensor] = subject.conditions
        if new_images:
            self._shift_px += 1
            conditions = [torch.roll(told, self._shift_px, dims=3) for told in subject.conditions]
        began_s = monotonic()
        result = await self._served.painted(controlled, conditions)
        found = [[span for span in read_spans(path) if span.began_s >= began_s] for path in self._traces]
        denoise_ms = next(timing.duration_ms for timing in result.timings if timing.stage == "denoise")
        picture = _timed(subject.case.steps, control_count, denoise_ms / 1e3, found[0], found[1 : 1 + control_count])
        return replace(picture, new_images=new_images, blocks=subject.blocks)


@asynccontextmanager
async def started(subject: OverlapSubject, replica_count: int, cores: Sequence[int]) -> AsyncIterator[OverlapBench]:
    """Start the subject's processes, the worker on the first core, the replicas together on the last."""
    with ExitStack() as stack:
        folder = stack.enter_context(shared_folder())
        traces = [folder / f"spans-{number}.jsonl" for number in range(replica_count + 1)]
        for trace in traces:
            trace.touch()
        addresses = [
            stack.enter_context(
                replica_process(
                    folder,
                    f"c{number}",
                    subject.replica_module,
                    *("--controlnets", str(subject.registry), "--trace-file", str(traces[number + 1])),
                    *("--prefetch", subject.controlnets[number].name),
                    *subject.replica_flags,
                    core=cores[-1],
                )
            )
            for number in range(replica_count)
        ]
        flags = ("--shared-memory-dir", str(folder / "shared"), "--trace-file", str(traces[0]), *subject.worker_flags)
        worker = worker_process(subject.model, *flags, core=cores[0], module=subject.worker_module)
        address = stack.enter_context(worker)
        served = [
            ServedControlNet(selection, place) for selection, place in zip(subject.controlnets, addresses, strict=False)
        ]
        async with serving_together(address, served) as together:
            yield OverlapBench(subject, together, traces)


def _timed(
    step_count: int, control_count: int, denoise_s: float, own: list[Span], others: list[list[Span]]
) -> TimedPicture:
    steps = [span for span in own if span.what in ("decode", "whole")]
    between = steps[-1].ended_s - steps[0].ended_s
    # The first pass of a stream tells the residuals' shapes: it is not a step's.
    passes = [[span for span in spans if span.what == "residuals"][-step_count:] for spans in others]
    return TimedPicture(
        control_count=control_count,
        step_count=step_count,
        denoise_s=denoise_s,
        steady_s=between / max(len(steps) - 1, 1),
        encode_s=_mean(own, "encode"),
        decode_s=_mean(own, "decode"),
        whole_s=_mean(own, "whole"),
        control_s=max((_computing_s(spans, all_of) for spans, all_of in zip(passes, others, strict=True)), default=0.0),
        deliver_s=max((_mean(spans, "deliver") for spans in others), default=0.0),
        device_s=sum(_length(span) for spans in (own, *others) for span in spans if span.what != "deliver"),
        spans=tuple(span for spans in (own, *others) for span in spans),
        model_s=sum(_length(span) for span in own) / step_count,
    )


def _computing_s(passes: Sequence[Span], spans: Sequence[Span]) -> float:
    """The mean of the passes without what of their residuals was written meanwhile."""
    within = [
        span
        for span in spans
        if span.what == "deliver" and any(one.began_s <= span.began_s and span.ended_s <= one.ended_s for one in passes)
    ]
    return (sum(map(_length, passes)) - sum(map(_length, within))) / max(len(passes), 1)


def _mean(spans: Sequence[Span], what: str) -> float:
    return fmean([_length(span) for span in spans if span.what == what] or [0.0])


def _length(span: Span) -> float:
    return span.ended_s - span.began_s


def trace_events(picture: TimedPicture, names: Sequence[str]) -> dict[str, Any]:
    """Return the picture's spans as Chrome's trace viewer and Perfetto read them, microseconds from its first one;
    `names` of its processes, the worker first."""
    zero_s = min(span.began_s for span in picture.spans)
    order = list(dict.fromkeys(span.process_id for span in picture.spans))
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": place, "args": {"name": names[place]}} for place in range(len(order))
    ]
    for span in picture.spans:
        at = {"ts": round((span.began_s - zero_s) * 1e6), "dur": round(_length(span) * 1e6)}
        events.append({"ph": "X", "name": span.what, "pid": order.index(span.process_id), "tid": 0, **at})
    return {"displayTimeUnit": "ms", "traceEvents": events}
