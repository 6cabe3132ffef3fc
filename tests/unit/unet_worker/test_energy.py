"""Report joules if the device has a counter, and nothing otherwise."""

import math
import threading
from pathlib import Path

import pytest
import torch

from pentimento.diffusion.device import EnergyMeter, open_counter, rapl_counter

CPU = torch.device("cpu")


def zone(powercap: Path, name: str, energy_uj: int, range_uj: int = 1_000_000_000) -> Path:
    directory = powercap / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "energy_uj").write_text(f"{energy_uj}\n")
    (directory / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return directory


def test_counter_without_readable_zone_is_none(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl:0").mkdir()

    assert rapl_counter(tmp_path) is None
    assert open_counter(CPU, tmp_path / "none") is None


def test_packages_add_up_and_their_parts_do_not_count_twice(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "intel-rapl:0", 5_000_000), zone(tmp_path, "intel-rapl:1", 7_000_000)
    part = zone(tmp_path, "intel-rapl:0:0", 1_000_000)
    counter = rapl_counter(tmp_path)
    assert counter is not None
    before = counter()

    for directory, energy_uj in ((first, 6_000_000), (second, 7_500_000), (part, 9_000_000)):
        (directory / "energy_uj").write_text(str(energy_uj))

    assert counter() - before == pytest.approx(1.5)


def test_counter_that_wraps_continues(tmp_path: Path) -> None:
    directory = zone(tmp_path, "intel-rapl:0", 900, range_uj=1000)
    counter = rapl_counter(tmp_path)
    assert counter is not None
    before = counter()

    (directory / "energy_uj").write_text("100")

    assert counter() - before == pytest.approx(200e-6)


class Meter:
    """Samples by hand: (time, joules)."""

    def __init__(self, *samples: tuple[float, float]) -> None:
        self.spent: list[float] = []
        self._now = 0.0
        self._joules = 0.0
        self.meter = EnergyMeter(lambda: self._joules, self.spent.append, lambda: self._now)
        for self._now, self._joules in samples:
            self.meter.sample()


RISING = ((0.0, 0.0), (1.0, 10.0), (2.0, 30.0), (3.0, 60.0))


SAMPLES: list[tuple[tuple[tuple[float, float], ...], tuple[float, float], float | None, list[float]]] = [
    (RISING, (1.0, 2.0), 20.0, [10.0, 20.0, 30.0]),
    (RISING, (0.5, 2.5), 20.0, [10.0, 20.0, 30.0]),
    (RISING[:3], (1.2, 1.3), 20.0, [10.0, 20.0]),
    (RISING[:3], (5.0, 6.0), 20.0, [10.0, 20.0]),
    ((), (0.0, 1.0), None, []),
    (((0.0, 5.0),), (0.0, 1.0), None, []),
    (((0.0, 100.0), (1.0, 110.0), (2.0, 4.0)), (1.0, 2.0), None, [10.0]),
]


def test_watts_are_of_samples_around_the_time() -> None:
    for samples, asked, watts, spent in SAMPLES:
        made = Meter(*samples)

        assert made.meter.watts(*asked) == watts, asked
        assert made.spent == spent, asked


@pytest.mark.slow
def test_silent_counter_is_retried_and_failures_are_counted() -> None:
    """The time without a reading has no figure; its energy is spent nevertheless."""
    read, spent, failures = iter([10.0, None, None, 50.0, 60.0, 60.0]), list[float](), list[bool]()
    over, silent = threading.Event(), list[float | None]()

    def counter() -> float:
        joules = next(read, 60.0)
        if joules is None:
            raise OSError("the driver is reset")
        return joules

    def failed() -> None:
        failures.append(True)
        silent.append(meter.watts(0.0, math.inf))

    def spend(joules: float) -> None:
        spent.append(joules)
        if len(spent) == 3:
            over.set()

    meter = EnergyMeter(counter, spend, fail=failed)
    meter.start()

    assert over.wait(60.0)
    meter.close()
    assert (spent[:2], len(failures), silent) == ([40.0, 10.0], 2, [None, None])
    assert meter.watts(0.0, math.inf) is not None
