"""Share the rows' device, clock and speed, and report why a row cannot run (`gpu_rows`)."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import torch

from lab.runs.measure import Figure, Target, at_least, informative, measured
from pentimento.diffusion.engine import cuda_recorder
from pentimento.domain.errors import FailedPrecondition


@dataclass
class RowResult:
    """Hold a row's figures, and the reasons of missing ones by name."""

    figures: list[Figure] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuSetup:
    """Describe where rows run. `tiny` networks and few `rounds` only show that a row runs."""

    device: torch.device
    tiny: bool
    rounds: int

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            for index in range(torch.cuda.device_count()):
                torch.cuda.synchronize(index)

    def check_graphs(self) -> None:
        """Raise FailedPrecondition (NO_CUDA) if the device has no CUDA graphs."""
        if self.device.type != "cuda":
            raise FailedPrecondition("NO_CUDA", "CUDA graphs need a CUDA device")

    def replayed(self, act: Callable[[], object], repeats: int) -> Callable[[], object]:
        """Return `act` as a served pass runs it, repeated: by a CUDA graph if the device has them."""
        if self.device.type != "cuda":
            return lambda: [act() for _ in range(repeats)]
        recording = cuda_recorder(self.device)(lambda: [act() for _ in range(repeats)])
        return recording.replay

    def seconds(self, act: Callable[[], object], repeats: int = 1) -> float:
        """Return the seconds of one run, launches included; the mean of `repeats` in sequence."""
        self.synchronise()
        began_at = time.perf_counter()
        for _ in range(repeats):
            act()
        self.synchronise()
        return (time.perf_counter() - began_at) / repeats

    def interleaved(self, ways: Mapping[str, Callable[[], object]], repeats: int = 1) -> dict[str, list[float]]:
        """Return milliseconds by way, alternating, after a warm-up round."""
        kept: dict[str, list[float]] = {name: [] for name in ways}
        for round_ in range(self.rounds + 1):
            for name, act in ways.items():
                milliseconds = 1e3 * self.seconds(act, repeats)
                if round_:
                    kept[name].append(milliseconds)
        return kept

    @cached_property
    def bytes_a_second(self) -> float:
        """Return bytes read and written per second by a copy within the device's memory; the fastest of five."""
        size = 2**24 if self.tiny else 2**30
        source, target = (torch.zeros(size, dtype=torch.uint8, device=self.device) for _ in range(2))
        copied = min(self.seconds(lambda: target.copy_(source), 4) for _ in range(5))
        return 2 * size / copied

    def operations_a_second(self, dtype: torch.dtype) -> float:
        """Return operations per second of a large square product, two per multiply-add; the fastest of five."""
        side = 256 if self.tiny else 8192
        left, right = (torch.randn(side, side, device=self.device).to(dtype) for _ in range(2))
        return 2 * side**3 / min(self.seconds(lambda: left @ right, 4) for _ in range(5))

    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Return half precisions on a GPU; none on a CPU, which computes them too slowly to show anything."""
        return (torch.float16, torch.bfloat16) if self.device.type == "cuda" else (torch.float32,)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def compared(
    name: str, times: Mapping[str, list[float]], floor_ms: float, target: Target | None = None
) -> list[Figure]:
    """Return milliseconds of each way, its speed-up over the first by round, and the floor's share of its time."""
    first, *others = times
    figures = [measured(f"{name}: {way}", taken, median, informative("ms")) for way, taken in times.items()]
    for way in others:
        ratios = [theirs / ours for theirs, ours in zip(times[first], times[way], strict=True)]
        figures.append(measured(f"{name}: {first} / {way}", ratios, median, target or at_least(1.0, "x")))
    for way, taken in times.items():
        shares = [floor_ms / one for one in taken]
        figures.append(measured(f"{name}: the floor / {way}", shares, median, informative()))
    return figures


def reason_of(error: Exception) -> str:
    """Return the recorded reason of a way that cannot run."""
    return f"{getattr(error, 'reason', type(error).__name__)}: {str(error)[:200]}"
