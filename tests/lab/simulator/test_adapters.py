from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from lab.emulation.adapter_costs import NO_ADAPTER_COSTS, AdapterCosts
from lab.emulation.adapters import PLAIN, AttemptAdapters
from lab.runs import Outcome, RequestRecord
from lab.simulator import Scenario, Simulation
from lab.simulator.adapters import SimulatedAdapters
from lab.simulator.scenario import Outage
from lab.workloads import Workload
from pentimento.domain.fleet import Capability
from pentimento.profiles.costs import steady
from tests.lab.simulator.scenarios import arrivals, one_model

# An image takes 1 s in a batch of one.
ONE = {1: 1.0}


def scenario(resident_count: int, load_s: float = 0.0, devices: int = 2, **changes: object) -> Scenario:
    adapters = AdapterCosts(resident_count, steady(load_s))
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


def test_adapters_change_nothing_without_adapter_memory() -> None:
    plain, styled = arrivals([0.0, 0.1, 5.0]), asking([0.0, 0.1, 5.0], ("a",), ("b",), ("a",))

    assert latencies(played(scenario(0), plain)[1]) == latencies(played(scenario(0), styled)[1])


def test_a_lora_is_loaded_where_it_is_not_kept() -> None:
    workload = asking([0.0, 5.0, 10.0], ("a",), ("a",), ("b",))
    simulation, records = played(scenario(1, load_s=0.5, devices=1), workload)

    assert latencies(records) == pytest.approx([1.5, 1.0, 1.5])
    assert simulation.loaded_count == 2


def test_requests_go_where_their_lora_is_kept() -> None:
    """Two devices and two alternating LoRAs: each is loaded once."""
    times = [float(2 * number) for number in range(20)]
    simulation, records = played(scenario(1, 0.5), asking(times, *([("a",), ("b",)] * 10)))

    assert simulation.loaded_count == 2
    assert all(record.outcome is Outcome.COMPLETED for record in records)


def test_lost_device_loses_its_loras_and_no_request() -> None:
    outage = Outage("w0-0", 0.25, 3.0, noticed_s=0.5)
    of = scenario(1, load_s=0.5, devices=1, outages=(outage,))
    simulation, records = played(of, asking([0.0, 10.0], ("a",), ("a",)))

    assert [record.outcome for record in records] == [Outcome.COMPLETED] * 2
    assert simulation.loaded_count == 2


def test_lora_with_late_start_is_loaded_during_first_steps() -> None:
    """Of ten steps in a second, the first two end with half a second left of a load of 0.7 s."""
    workload = asking([0.0], ("a",))
    late = AdapterCosts(1, steady(0.7), latest_start_fraction=0.2)

    alone = played(replace(scenario(1, devices=1), adapters=late), workload)[1]

    assert latencies(alone) == pytest.approx([1.0 + 0.7 - 0.2])


def test_dataplane_receives_only_changes() -> None:
    (a,) = asking([0.0], ("a",)).arrivals
    adapters = SimulatedAdapters(AdapterCosts(2), (a,))

    first = adapters.news("w", 1, ())
    assert first is not None and first.loras == {"a"} and first.resident == frozenset()
    assert adapters.news("w", 1, ()) is None
    second = adapters.news("w", 1, ("a",))
    assert second is not None and second.resident == {"a"}
    assert adapters.news("w", 2, ()) is not None


def test_what_an_arrival_needs() -> None:
    (arrival,) = asking([0.0], ("b", "a")).arrivals
    both = replace(arrival, controlnets=("edges",))
    simulated, plain = SimulatedAdapters(AdapterCosts(1), (both,)), SimulatedAdapters(NO_ADAPTER_COSTS, (both,))

    needs = simulated.needs_of(both)

    assert needs.capabilities == {Capability.LORA, Capability.CONTROLNET} and needs.loras == {"a", "b"}
    assert simulated.of(both) == AttemptAdapters((("a", 1.0), ("b", 1.0)), True)
    assert not plain.needs_of(both) and plain.of(both) == PLAIN
