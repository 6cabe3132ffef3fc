"""What the rows of `gpu_rows` share: the device, its clock, its speed, and what a row says where it cannot be run."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import torch

from benchmarks.report import Figure, Target, at_least, informative, measured
from pentimento.diffusion.engine import cuda_recorder
from pentimento.domain.errors import FailedPrecondition


@dataclass
class RowResult:
    """Figures of a row, and by what could not be measured the reason."""

    figures: list[Figure] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuSetup:
    """Where rows run. `tiny` networks and few `rounds` show that a row runs, and no more."""

    device: torch.device
    tiny: bool
    rounds: int

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            for index in range(torch.cuda.device_count()):
                torch.cuda.synchronize(index)

    def check_graphs(self) -> None:
        """Raise FailedPrecondition (NO_CUDA) on a device that has no CUDA graphs."""
        if self.device.type != "cuda":
            raise FailedPrecondition("NO_CUDA", "CUDA graphs need a CUDA device")

    def replayed(self, act: Callable[[], object], repeats: int) -> Callable[[], object]:
        """Return `act` as a served pass runs it, so many times one after the other: by a CUDA graph, where there are
        any."""
        if self.device.type != "cuda":
            return lambda: [act() for _ in range(repeats)]
        recording = cuda_recorder(self.device)(lambda: [act() for _ in range(repeats)])
        return recording.replay

    def seconds(self, act: Callable[[], object], repeats: int = 1) -> float:
        """Of one run, launches included; the mean of `repeats` one after the other."""
        self.synchronise()
        began_at = time.perf_counter()
        for _ in range(repeats):
            act()
        self.synchronise()
        return (time.perf_counter() - began_at) / repeats

    def interleaved(self, ways: Mapping[str, Callable[[], object]], repeats: int = 1) -> dict[str, list[float]]:
        """Milliseconds by way, in turn, after a round that is not kept."""
        kept: dict[str, list[float]] = {name: [] for name in ways}
        for round_ in range(self.rounds + 1):
            for name, act in ways.items():
                milliseconds = 1e3 * self.seconds(act, repeats)
                if round_:
                    kept[name].append(milliseconds)
        return kept

    @cached_property
    def bytes_a_second(self) -> float:
        """Of a copy within the device's memory, bytes read and bytes written; the fastest of five."""
        size = 2**24 if self.tiny else 2**30
        source, target = (torch.zeros(size, dtype=torch.uint8, device=self.device) for _ in range(2))
        copied = min(self.seconds(lambda: target.copy_(source), 4) for _ in range(5))
        return 2 * size / copied

    def operations_a_second(self, dtype: torch.dtype) -> float:
        """Of a large square product, two a multiplication with its addition; the fastest of five."""
        side = 256 if self.tiny else 8192
        left, right = (torch.randn(side, side, device=self.device).to(dtype) for _ in range(2))
        return 2 * side**3 / min(self.seconds(lambda: left @ right, 4) for _ in range(5))

    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Half precisions on a GPU; a CPU computes these too slowly to show anything."""
        return (torch.float16, torch.bfloat16) if self.device.type == "cuda" else (torch.float32,)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def compared(
    name: str, times: Mapping[str, list[float]], floor_ms: float, target: Target | None = None
) -> list[Figure]:
    """Milliseconds of each way; how much faster each is than the first, round by round; what share of its time the
    device could not do without."""
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
    """Return what is written of a way that cannot be run."""
    return f"{getattr(error, 'reason', type(error).__name__)}: {str(error)[:200]}"
