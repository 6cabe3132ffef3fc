"""Time images with ControlNets in other processes: when each process computed, by its spans."""

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

from lab.fixtures.controlled_generation import ControlledCase
from lab.fixtures.controlnet_serving import (
    ControlledByService,
    ServedControlNet,
    replica_process,
    serving_together,
    shared_folder,
)
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.spans import Span, read_spans
from lab.fixtures.traced_process import MODULE as TRACED
from lab.fixtures.worker_process import worker_process
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.generation import ControlNetSelection


@dataclass(frozen=True)
class Blocks:
    """Store the block counts of a transformer and of its ControlNets."""

    base: int
    control: int

    def ideal_s(self, base_s: float, control_s: float) -> float:
        """Return the least seconds of a step if the base model takes `base_s` and its ControlNet `control_s`.

        Each residual arrives as its block ends, or the base model waits for it; after the last residual the remaining
        blocks run.
        """
        block_s, part_s = base_s / self.base, control_s / self.control
        left = self.base - 1 - math.ceil((self.control - 1) * self.base / self.control)
        return max(base_s + max(part_s - block_s, 0.0), control_s + left * block_s)


@dataclass(frozen=True)
class OverlapSubject:
    """Describe a model and its ControlNets, the image to generate, and how to start both services. Each replica loads
    all of `registry`."""

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
    # for a transformer: its residuals arrive block by block
    blocks: Blocks | None = None


@dataclass(frozen=True)
class TimedImage:
    """Store the times of one image under `control_count` ControlNets, as means per step in seconds.

    They are those of the worker's halves and of the slowest ControlNet's pass. `denoise_s` is the whole stage with
    opening of the streams; `steady_s` is a step once they are open; `device_s` is the compute of all devices.
    """

    control_count: int
    step_count: int
    denoise_s: float
    steady_s: float
    encode_s: float
    decode_s: float
    control_s: float
    device_s: float
    spans: tuple[Span, ...]
    # whether no replica had embedded its control images
    new_images: bool = False
    # all compute of the worker's network in a step
    model_s: float = 0.0
    blocks: Blocks | None = None

    @property
    def ideal_step_s(self) -> float:
        """Return max(C, E) + D, or for a transformer the ideal by blocks."""
        if self.blocks is not None:
            return self.blocks.ideal_s(self.model_s, self.control_s)
        return max(self.control_s, self.encode_s) + self.decode_s

    @property
    def serial_step_s(self) -> float:
        """Return C + E + D."""
        return self.control_s + self.model_s

    @property
    def share_of_ideal(self) -> float:
        """Return the speed-up over C + E + D in sequence, as a share of the ideal speed-up."""
        return self.ideal_step_s * self.step_count / self.denoise_s

    @property
    def steady_share(self) -> float:
        """Return the same share for a step once the streams are open."""
        return self.ideal_step_s / self.steady_s


class OverlapBench:
    """Hold the processes of one subject: the worker on one core, every ControlNet replica on the other."""

    def __init__(self, subject: OverlapSubject, served: ControlledByService, traces: Sequence[Path]) -> None:
        self._subject = subject
        self._served = served
        self._traces = tuple(traces)
        self._shift_px = 0

    async def timed(self, control_count: int, *, new_images: bool = False) -> TimedImage:
        """Generate an image under the first `control_count` ControlNets, with the subject's control images or with new
        ones. Raises the image's error."""
        subject = self._subject
        controlled = ControlledCase(subject.case, (ControlSetting(),) * control_count)
        conditions: Sequence[Tensor] = subject.conditions
        if new_images:
            self._shift_px += 1
            conditions = [torch.roll(told, self._shift_px, dims=3) for told in subject.conditions]
        began_s = monotonic()
        result = await self._served.generated(controlled, conditions)
        found = [[span for span in read_spans(path) if span.began_s >= began_s] for path in self._traces]
        denoise_ms = next(timing.duration_ms for timing in result.timings if timing.stage == "denoise")
        image = _timed(subject.case.steps, control_count, denoise_ms / 1e3, found[0], found[1 : 1 + control_count])
        return replace(image, new_images=new_images, blocks=subject.blocks)


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
                    TRACED,
                    *("--traced", subject.replica_module, "--trace-file", str(traces[number + 1])),
                    *("--controlnets", str(subject.registry)),
                    *("--prefetch", subject.controlnets[number].name),
                    *subject.replica_flags,
                    core=cores[-1],
                )
            )
            for number in range(replica_count)
        ]
        traced = ("--traced", subject.worker_module, "--trace-file", str(traces[0]))
        flags = (*traced, "--shared-memory-dir", str(folder / "shared"), *subject.worker_flags)
        worker = worker_process(subject.model, *flags, core=cores[0], module=TRACED)
        address = stack.enter_context(worker)
        served = [
            ServedControlNet(selection, place) for selection, place in zip(subject.controlnets, addresses, strict=False)
        ]
        async with serving_together(address, served) as together:
            yield OverlapBench(subject, together, traces)


def _timed(
    step_count: int, control_count: int, denoise_s: float, own: list[Span], others: list[list[Span]]
) -> TimedImage:
    steps = [span for span in own if span.what in ("decode", "whole")]
    between = steps[-1].ended_s - steps[0].ended_s
    # A stream's first pass reports the residuals' shapes and belongs to no step.
    passes = [[span for span in spans if span.what == "residuals"][-step_count:] for spans in others]
    return TimedImage(
        control_count=control_count,
        step_count=step_count,
        denoise_s=denoise_s,
        steady_s=between / max(len(steps) - 1, 1),
        encode_s=_mean(own, "encode"),
        decode_s=_mean(own, "decode"),
        control_s=max((_computing_s(spans, all_of) for spans, all_of in zip(passes, others, strict=True)), default=0.0),
        device_s=sum(_length(span) for spans in (own, *others) for span in spans if span.what != "deliver"),
        spans=tuple(span for spans in (own, *others) for span in spans),
        model_s=sum(_length(span) for span in own) / step_count,
    )


def _computing_s(passes: Sequence[Span], spans: Sequence[Span]) -> float:
    """Return the mean of the passes, minus the writing of residuals during them."""
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


def trace_events(image: TimedImage, names: Sequence[str]) -> dict[str, Any]:
    """Return the image's spans for Chrome's trace viewer and Perfetto, in microseconds from the first; `names` are its
    processes', worker first."""
    zero_s = min(span.began_s for span in image.spans)
    order = list(dict.fromkeys(span.process_id for span in image.spans))
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": place, "args": {"name": names[place]}} for place in range(len(order))
    ]
    for span in image.spans:
        at = {"ts": round((span.began_s - zero_s) * 1e6), "dur": round(_length(span) * 1e6)}
        events.append({"ph": "X", "name": span.what, "pid": order.index(span.process_id), "tid": 0, **at})
    return {"displayTimeUnit": "ms", "traceEvents": events}
