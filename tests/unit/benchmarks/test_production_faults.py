"""The faults of kill_any's production form: their kinds, and the acts of the network for each."""

import random
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.suites.host_faults import can_slow_disks, can_step_clocks
from benchmarks.suites.production import ProductionSuite
from benchmarks.suites.production_faults import ProductionTrial, disturbance_of, kinds_of
from benchmarks.suites.virtual_switch import Disturbance

ADDRESSES = {
    "frontdoor": ("f",),
    "gateway": ("g",),
    "edge": ("e",),
    "workers": ("w0", "w1"),
    "frontdoors": ("f", "f1"),
    "database": ("d0", "d1"),
    "entrance": ("a",),
}
PROCESSES = ["gateway", "frontdoor-0", "frontdoor-1", "controlnet-0"]


@pytest.mark.parametrize(
    ("target", "kind", "disturbance"),
    [
        ("network", "frontdoor from database", Disturbance(apart=(("f", "d0"), ("f", "d1")))),
        ("network", "frontdoor from workers", Disturbance(apart=(("f", "w0"), ("f", "w1")))),
        ("network", "gateway from frontdoors", Disturbance(apart=(("g", "f"), ("g", "f1")))),
        ("network", "edge from frontdoor", Disturbance(apart=(("e", "a"),))),
        ("frontdoor", "loss", Disturbance(lossy="f")),
        ("edge", "delay", Disturbance(late="e")),
    ],
)
def test_network_fault_parts_or_disturbs_named_hosts(target: str, kind: str, disturbance: Disturbance) -> None:
    assert disturbance_of(target, kind, ADDRESSES) == disturbance


def test_kinds_cover_each_process_and_store_and_clocks_and_slow_disks_only_where_possible() -> None:
    plain = set(kinds_of([*PROCESSES, "controlnet-1"], clocks=False, disks=False))
    stepped, slowed = (set(kinds_of(PROCESSES, clocks=not disks, disks=disks)) for disks in (False, True))
    # The one replica that is left serves the requests with a ControlNet.
    assert "controlnet-1" not in {name for name, _ in plain}
    assert ("shared memory", "full disk") in plain

    assert {(name, kind) for name in PROCESSES for kind in ("SIGKILL", "SIGSTOP")} < plain
    assert {("postgresql", kind) for kind in ("restart", "failover", "standby stopped", "full disk")} < plain
    assert {kind for _, kind in stepped - plain} == {"clock forward", "clock back"}
    assert plain < stepped
    assert slowed - plain == {("postgresql", "slow disk"), ("gateway", "slow disk")} and plain < slowed
    assert {name for name, kind in plain if kind == "no memory"} == {
        *("frontdoor", "controller", "gateway", "edge", "tiny-heavy-0")
    }


def test_each_kind_is_drawn_once_before_any_repeats() -> None:
    suite = cast("ProductionSuite", SimpleNamespace(processes=dict.fromkeys(PROCESSES)))
    drawn = ProductionTrial(suite, random.Random(1))._drawn()
    count = len(kinds_of(PROCESSES, can_step_clocks(), can_slow_disks()))

    turns = [[next(drawn) for _ in range(count)] for _ in range(2)]

    assert set(turns[0]) == set(turns[1])
    assert len(set(turns[0])) == count
    assert turns[0] != turns[1]
