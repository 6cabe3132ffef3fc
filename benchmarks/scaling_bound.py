"""Bound the device time that any scaler needs at a number of violations, even with knowledge of the future: a linear
program.

It relaxes `autoscale_sim` in five ways that only lower the device time: 1. devices and requests are divisible, and a
request may run on several devices, as long as it has run no longer than it has been there; 2. arrivals count at the end
of their slot for deadlines, and at its beginning otherwise; 3. any number of devices serves at the beginning; 4. a
device is removed at any time, without finishing an image; 5. requests from before the scored time need none.

Variables of each slot: the devices that serve, ordered devices, which serve `start_s` later, the work done, and the
arrivals that become violations, which need no work.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, vstack

SLOT_S = 15.0


@dataclass(frozen=True)
class BoundedFleet:
    """Hold the seconds of an image, its SLO and a device's start, and the most devices."""

    run_s: float
    slo_s: float
    start_s: float
    most: int


@dataclass(frozen=True)
class _DeviceProgram:
    """Minimise `costs` x variables, each between 0 and its top, with `rows` x variables at most `limits`. The last
    variables are the violations of each slot."""

    rows: csr_array
    limits: np.ndarray
    costs: np.ndarray
    tops: np.ndarray
    slot_count: int


def least_device_h(traces: Sequence[Sequence[float]], length_s: float, violations: int, fleet: BoundedFleet) -> float:
    """Return the least device hours of traces of `length_s` seconds, which have at most `violations` together."""
    programs = [_program(times_s, length_s, fleet) for times_s in traces]
    blocks = [
        hstack([csr_array((len(one.limits), len(other.costs))) if other is not one else one.rows for other in programs])
        for one in programs
    ]
    violated = np.concatenate(
        [np.arange(len(one.costs)) >= len(one.costs) - one.slot_count for one in programs], dtype=float
    )
    found = linprog(
        np.concatenate([one.costs for one in programs]),
        A_ub=vstack([*blocks, csr_array(violated[None])]),
        b_ub=np.concatenate([*(one.limits for one in programs), [violations]]),
        bounds=[(0.0, top) for one in programs for top in one.tops],
        method="highs",
    )
    if found.status != 0:
        raise RuntimeError(f"the bound has no solution: {found.message}")
    return float(found.fun) / 3600.0


def _program(times_s: Iterable[float], length_s: float, fleet: BoundedFleet) -> _DeviceProgram:
    count = math.ceil(length_s / SLOT_S)
    arrived = np.bincount([min(int(at_s // SLOT_S), count - 1) for at_s in times_s], minlength=count).astype(float)
    ends_s = (np.arange(count) + 1.0) * SLOT_S
    # Seconds from an arrival in each slot (column) to the end of each slot (row), at the most and at the least.
    most_s = np.maximum(ends_s[:, None] - (ends_s - SLOT_S)[None], 0.0)
    least_s = np.maximum(ends_s[:, None] - ends_s[None], 0.0)
    allowed = np.minimum(most_s, fleet.run_s)
    due = np.clip(least_s - (fleet.slo_s - fleet.run_s), 0.0, fleet.run_s)
    nothing, unit, so_far = np.zeros((count, count)), np.eye(count), np.tri(count)
    lag = round(fleet.start_s / SLOT_S)
    started = np.eye(count, k=-lag)
    rows = [
        # Work needs devices, devices need a start, and work is not too early and not too late.
        ([-SLOT_S * unit, nothing, unit, nothing], np.zeros(count)),
        ([unit - np.eye(count, k=-1), -started, nothing, nothing], np.eye(count)[0] * fleet.most),
        ([nothing, nothing, so_far, allowed], allowed @ arrived),
        ([nothing, nothing, -so_far, -due], -(due @ arrived)),
    ]
    ordered_s = np.minimum(fleet.start_s, length_s - (ends_s - SLOT_S))
    lengths_s = np.minimum(ends_s, length_s) - (ends_s - SLOT_S)
    return _DeviceProgram(
        csr_array(np.vstack([np.hstack(parts) for parts, _ in rows])),
        np.concatenate([limits for _, limits in rows]),
        np.concatenate([lengths_s, ordered_s, np.zeros(2 * count)]),
        np.concatenate([np.full(2 * count, float(fleet.most)), np.full(count, np.inf), arrived]),
        count,
    )
