"""Choose a device and its precision, measure its memory in bytes: used, total, and at the peak of a function call; and
its energy.

The peak on a CPU is that of this process, which Linux stores as a resettable high-water mark; on other systems it is
None. Energy is NVML's for a CUDA device, RAPL's (powercap) for CPU packages. Without a reading there is no figure: none
is estimated from a power rating."""

import importlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from pentimento.devices.choices import DeviceChoice, DeviceMemory, DtypeChoice
from pentimento.domain.clock import Backoff
from pentimento.domain.errors import FailedPrecondition

logger = logging.getLogger(__name__)


BUDGET_SHARE = 0.9
CONTROL_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_GROUP_USED, _GROUP_STAT = Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory.stat")
_MEMORY = Path("/proc/meminfo")
# Share of the memory that stays free for others.
_SPARE_SHARE = 0.05
_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_HIGH_WATER = "5"
_KIB = 1024
# The peak is one number of the process.
_peak = threading.Lock()


def choose_device(choice: DeviceChoice) -> torch.device:
    """Return the device. Raises FailedPrecondition if CUDA is requested and unavailable."""
    available = torch.cuda.is_available()
    if choice is DeviceChoice.CUDA and not available:
        raise FailedPrecondition("NO_DEVICE", "--device cuda: no CUDA device can be used")
    return torch.device("cuda" if available and choice is not DeviceChoice.CPU else "cpu")


def exact_device(choice: DeviceChoice) -> torch.device:
    """Return the device of a small network, after turning TF32 off in this process: its results are compared with a
    CPU's, and TF32 rounds a convolution's inputs to 10 bits. Raises FailedPrecondition like `choose_device`."""
    torch.backends.cudnn.allow_tf32 = False
    return choose_device(choice)


def choose_dtype(choice: DtypeChoice, device: torch.device, half: torch.dtype = torch.float16) -> torch.dtype:
    """Return the chosen type; by default float32 on a CPU, else `half`."""
    if choice is DtypeChoice.AUTO:
        return torch.float32 if device.type == "cpu" else half
    dtype: torch.dtype = getattr(torch, choice.value)
    return dtype


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def memory_budget_bytes(
    device: torch.device, budget_mib: int, sharer_count: int = 1, share: float = BUDGET_SHARE
) -> int:
    """Return the memory for weights and batches: the setting, else a sharer's part of that share of the device, at most
    what other processes leave free; on the CPU, of the control group's limit."""
    if budget_mib:
        return budget_mib * 2**20
    memory = device_memory(device)
    if device.type == "cuda":
        return sharers_budget(memory, torch.cuda.memory_reserved(device), share, sharer_count)
    return int(min(memory.total_bytes, _group_limit_bytes(memory.total_bytes)) * share / sharer_count)


def sharers_budget(memory: DeviceMemory, own_bytes: int, share: float, sharer_count: int) -> int:
    """Return one of `sharer_count` processes' part of a share of the memory, at most the free memory and its own."""
    free_bytes = memory.total_bytes - memory.used_bytes
    return min(int(memory.total_bytes * share / sharer_count), free_bytes + own_bytes)


def _group_limit_bytes(default: int) -> int:
    try:
        limit = CONTROL_GROUP_LIMIT.read_text().strip()
    except OSError:
        return default
    return int(limit) if limit.isdigit() else default


def device_memory(device: torch.device) -> DeviceMemory:
    """Return used and total memory; of a CPU, this process's resident memory and the machine's."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(total - free, total)
    page = os.sysconf("SC_PAGE_SIZE")
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return DeviceMemory(resident * page, os.sysconf("SC_PHYS_PAGES") * page)


def free_host_bytes() -> int:
    """Return the memory that the host and this process's control group can give, without a spare part; 0 where it
    cannot be measured. Cached files count as free."""
    found = {name.rstrip(":"): int(value) * _KIB for name, value, *_ in _lines_of(_MEMORY)}
    free = found.get("MemAvailable", 0) - int(found.get("MemTotal", 0) * _SPARE_SHARE)
    if limit := _group_limit_bytes(0):
        cached = sum(int(value) for name, value in _lines_of(_GROUP_STAT) if name == "file")
        used = sum(int(value) for (value,) in _lines_of(_GROUP_USED))
        free = min(free, limit - used + cached - int(limit * _SPARE_SHARE))
    return max(free, 0)


def free_device_bytes(device: torch.device, budget_bytes: int) -> int:
    """Return the part of a budget that this process does not use, at most what the device can give."""
    if device.type != "cuda":
        return min(budget_bytes - (used_bytes(device) or 0), free_host_bytes())
    free, _ = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    return min(budget_bytes - allocated, free + torch.cuda.memory_reserved(device) - allocated)


def _lines_of(file: Path) -> list[list[str]]:
    """Return the words of a file's lines; none where the system has no such file."""
    try:
        return [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return []


def peak_bytes_of(device: torch.device, work: Callable[[], object]) -> int | None:
    """Run `work` and return the bytes in use at its peak, including those in use before; None if that cannot be
    measured. One thread of the process measures at a time."""
    with _peak:
        return _peak_bytes(device, work)


def _peak_bytes(device: torch.device, work: Callable[[], object]) -> int | None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    resettable = _reset_high_water()
    work()
    return _status_bytes("VmHWM") if resettable else None


def used_bytes(device: torch.device) -> int | None:
    """Return the bytes in use now; None if that cannot be measured."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _status_bytes("VmRSS")


def _reset_high_water() -> bool:
    try:
        _CLEAR_REFS.write_text(_RESET_HIGH_WATER)
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith(f"{field}:")), None)


POWERCAP = Path("/sys/class/powercap")
SAMPLE_INTERVAL_S = 0.2
# A request that takes longer than this is charged the mean power of the remembered time.
REMEMBERED_SAMPLES = 3000
# A counter that does not answer, as during a driver's reset, is read again.
RETRIES = Backoff(first_s=SAMPLE_INTERVAL_S, max_s=60.0)

Counter = Callable[[], float]


def open_counter(device: torch.device, powercap: Path = POWERCAP) -> Counter | None:
    """Return a reading in joules that only grows, or None if the device reports none."""
    return _nvml_counter(device) if device.type == "cuda" else rapl_counter(powercap)


def rapl_counter(powercap: Path) -> Counter | None:
    """Read all CPU packages together, which includes other processes on them."""
    zones = [_RaplZone(path) for path in sorted(powercap.glob("intel-rapl:*")) if path.name.count(":") == 1]
    try:
        for zone in zones:
            zone.joules()
    except (OSError, ValueError):
        return None
    return (lambda: sum(zone.joules() for zone in zones)) if zones else None


class _RaplZone:
    """Sum up `energy_uj`, which wraps around at `max_energy_range_uj`: read it often enough, and the sum does not."""

    def __init__(self, directory: Path) -> None:
        self._energy = directory / "energy_uj"
        self._range = directory / "max_energy_range_uj"
        self._last_uj: int | None = None
        self._total_uj = 0

    def joules(self) -> float:
        now_uj = int(self._energy.read_text())
        if self._last_uj is not None:
            step = now_uj - self._last_uj
            self._total_uj += step if step >= 0 else step + int(self._range.read_text())
        self._last_uj = now_uj
        return self._total_uj / 1e6


def _nvml_counter(device: torch.device) -> Counter | None:
    """Read NVML's energy since the driver was loaded, from Volta on; needs the package pynvml."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception as error:  # any failure has the same answer
        logger.info("no energy figures: %s", type(error).__name__)
        return None
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3


class EnergyMeter:
    """Read a counter on a separate thread; `watts` is called on the event loop and reads nothing. `spend` receives
    the joules from one reading to the next, `fail` is called each time that the counter did not answer."""

    def __init__(
        self,
        counter: Counter,
        spend: Callable[[float], None] = lambda joules: None,
        monotonic: Callable[[], float] = time.monotonic,
        fail: Callable[[], None] = lambda: None,
    ) -> None:
        self._counter = counter
        self._spend = spend
        self._fail = fail
        self._monotonic = monotonic
        self._samples: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_SAMPLES)
        # The counter's last value, regardless of whether samples are kept from then.
        self._said: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()

    def sample(self) -> None:
        joules, said = self._counter(), self._said
        if said is not None and joules >= said:
            self._spend(joules - said)
        else:
            # The counter has restarted.
            self._samples.clear()
        self._said = joules
        self._samples.append((self._monotonic(), joules))

    def watts(self, since: float, until: float) -> float | None:
        """Return the mean power between two times of the monotonic clock, from the samples around them; None before two
        samples exist."""
        samples = list(self._samples)
        inner = list(_around(samples, since, until))
        if len(inner) < 2 or inner[-1][0] <= inner[0][0]:
            return None
        return (inner[-1][1] - inner[0][1]) / (inner[-1][0] - inner[0][0])

    def _run(self) -> None:
        failures = 0
        while True:
            failures = 0 if self._try_sample(failures) else failures + 1
            if self._stop.wait(RETRIES.delay_s(failures) if failures else SAMPLE_INTERVAL_S):
                return

    def _try_sample(self, failures: int) -> bool:
        """Return whether the counter answered, after `failures` in a row. The time without a reading has no figure."""
        try:
            self.sample()
        except Exception as error:  # after any error the counter may answer again
            self._samples.clear()
            self._fail()
            if not failures:
                logger.warning("the energy counter does not answer: %s", type(error).__name__)
            return False
        if failures:
            logger.info("the energy counter answers again")
        return True


def _around(samples: list[tuple[float, float]], since: float, until: float) -> Iterator[tuple[float, float]]:
    """Yield the samples from the last before `since` to the first after `until`, or to the newest; at least the two
    newest, since a request may be shorter than the time between samples."""
    begin = max((index for index, (at, _) in enumerate(samples) if at <= since), default=0)
    end = next((index for index, (at, _) in enumerate(samples) if at >= until), len(samples) - 1)
    yield from samples[max(min(begin, end - 1), 0) : end + 1]
