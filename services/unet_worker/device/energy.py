"""Measure the device's energy, if it reports it: NVML for a CUDA device, RAPL (powercap) for CPU packages. Without a
reading there is no figure: none is estimated from a power rating."""

import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from pentimento.domain.clock import Backoff

logger = logging.getLogger(__name__)

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
