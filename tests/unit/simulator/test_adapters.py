from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from pentimento.devices.profile import steady
from pentimento.domain.fleet import Capability
from pentimento.reports import Outcome, RequestRecord
from pentimento.simulator import Scenario, Simulation
from pentimento.simulator.adapters import AdapterSettings, AdapterShelves
from pentimento.simulator.scenario import Outage
from pentimento.workloads import Workload
from tests.unit.simulator.scenarios import arrivals, one_model

# A picture takes 1 s alone.
ONE = {1: 1.0}


def scenario(resident_count: int, load_s: float = 0.0, devices: int = 2, **changes: object) -> Scenario:
    adapters = AdapterSettings(resident_count, steady(load_s))
    return replace(one_model(ONE, devices), adapters=adapters, **changes)  # type: ignore[arg-type]


def asking(times: Sequence[float], *loras: tuple[str, ...]) -> Workload:
    made = arrivals(times)
    pairs = zip(made.arrivals, loras, strict=True)
    return replace(made, arrivals=tuple(replace(arrival, loras=names) for arrival, names in pairs))


def played(of: Scenario, workload: Workload) -> tuple[Simulation, list[RequestRecord]]:
    simulation = Simulation(of, workload, Random(1))
    return simulation, simulation.run()


def latencies(records: list[RequestRecord]) -> list[float]:
    return [record.latency_s for record in sorted(records, key=lambda record: record.arrived_s)]


def test_without_shelves_what_arrivals_name_changes_nothing() -> None:
    plain, styled = arrivals([0.0, 0.1, 5.0]), asking([0.0, 0.1, 5.0], ("a",), ("b",), ("a",))

    assert latencies(played(scenario(0), plain)[1]) == latencies(played(scenario(0), styled)[1])


def test_a_lora_is_loaded_where_it_is_not_kept() -> None:
    workload = asking([0.0, 5.0, 10.0], ("a",), ("a",), ("b",))
    simulation, records = played(scenario(1, load_s=0.5, devices=1), workload)

    assert latencies(records) == pytest.approx([1.5, 1.0, 1.5])
    assert simulation.loaded_count == 2


def test_requests_go_where_their_lora_is_kept() -> None:
    """Two devices and two LoRAs in turn: each is loaded once."""
    times = [float(2 * number) for number in range(20)]
    simulation, records = played(scenario(1, 0.5), asking(times, *([("a",), ("b",)] * 10)))

    assert simulation.loaded_count == 2
    assert all(record.outcome is Outcome.COMPLETED for record in records)


def test_a_device_that_dies_loses_what_it_kept_and_nobody_is_lost() -> None:
    outage = Outage("w0-0", 0.25, 3.0, noticed_s=0.5)
    of = scenario(1, load_s=0.5, devices=1, outages=(outage,))
    simulation, records = played(of, asking([0.0, 10.0], ("a",), ("a",)))

    assert [record.outcome for record in records] == [Outcome.COMPLETED] * 2
    assert simulation.loaded_count == 2


def test_the_one_used_longest_ago_goes_first() -> None:
    shelves = AdapterShelves(AdapterSettings(2, steady(1.0)), asking([0.0] * 3, ("a",), ("b",), ("c",)).arrivals)
    a, b, c = asking([0.0] * 3, ("a",), ("b",), ("c",)).arrivals
    shelves.news("w", 1)

    seconds = [shelves.take("w", arrival, Random(1)) for arrival in (a, b, a, c, a, b)]

    assert seconds == [1.0, 1.0, 0.0, 1.0, 0.0, 1.0]


def test_the_dataplane_hears_of_changes_alone_and_a_new_start_keeps_nothing() -> None:
    (a,) = asking([0.0], ("a",)).arrivals
    shelves = AdapterShelves(AdapterSettings(2), (a,))

    first = shelves.news("w", 1)
    assert first is not None and first.loras == {"a"} and first.resident == frozenset()
    assert shelves.news("w", 1) is None
    shelves.take("w", a, Random(1))
    second = shelves.news("w", 1)
    assert second is not None and second.resident == {"a"}
    third = shelves.news("w", 2)
    assert third is not None and third.resident == frozenset()


def test_what_an_arrival_needs() -> None:
    (arrival,) = asking([0.0], ("a", "b")).arrivals
    both = replace(arrival, controlnets=("edges",))
    shelves = AdapterShelves(AdapterSettings(1), (both,))

    needs = shelves.needs_of(both)

    assert needs.capabilities == {Capability.LORA, Capability.CONTROLNET} and needs.loras == {"a", "b"}
    assert not AdapterShelves(AdapterSettings(), (both,)).needs_of(both)
