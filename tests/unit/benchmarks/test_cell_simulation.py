"""Cells over one fleet in virtual time: their rates, shared devices, and moves of tenants."""

from collections import Counter
from random import Random

import pytest

from benchmarks.suites.cell_simulation import MESSAGE_S, CellSimulation, SharedDevice, map_of
from lab.simulator.agenda import Agenda
from pentimento.policies.cells import rendezvous
from tests.lab.simulator.scenarios import one_model

TENANTS = [f"tenant-{number}" for number in range(60)]


def simulation_of(names: tuple[str, ...], devices: int, core_s: float, image_s: float = 1.0) -> CellSimulation:
    """Return cells over devices that run one image at a time."""
    return CellSimulation(one_model({1: image_s}, devices), names, core_s, Random(3))


def completed(simulation: CellSimulation) -> dict[str, int]:
    return {name: cell.completed_count for name, cell in simulation.cells.items()}


def test_cell_carries_rate_of_its_core() -> None:
    """A core takes 0.1 s of a request, 60 devices more than cores give."""
    one, two = simulation_of(("a",), 60, 0.1), simulation_of(("a", "b"), 60, 0.1)
    for simulation in (one, two):
        for tenant in TENANTS:
            simulation.send(tenant)
        simulation.run_until(11.05)

    # The first image comes after a core's 0.1 s and the device's second.
    assert completed(one) == {"a": 100}
    # No cell knows which device the other one has just chosen: a request may wait for its image.
    assert list(completed(two).values()) == pytest.approx([100, 100], abs=2)


def test_cells_share_full_devices_equally_though_one_is_greedy() -> None:
    simulation = simulation_of(("a", "b"), 4, 0.001)
    greedy = [tenant for tenant in TENANTS if rendezvous(tenant, ("a", "b")) == "a"]
    for tenant in TENANTS:
        for _ in range(8 if tenant in greedy else 2):
            simulation.send(tenant)

    simulation.run_until(10.0)
    first = completed(simulation)
    simulation.run_until(60.0)

    served = [count - first[name] for name, count in completed(simulation).items()]
    assert sum(served) == pytest.approx(4 * 50, abs=8)
    assert served[0] == pytest.approx(served[1], abs=8)


def test_every_request_ends_once_while_cells_come_and_leave() -> None:
    simulation = simulation_of(("a", "b"), 10, 0.001)
    for tenant in TENANTS:
        simulation.send(tenant)
    simulation.run_until_ended()
    before = dict(simulation.accepted_by)

    simulation.add("c", map_of("abc", "ab"))
    for name in ("c", "b", "a"):
        simulation.cells[name].follow(map_of("abc", "ab"))
        simulation.run_until(simulation.now + 1.0)
    simulation.edge = map_of("abc", "ab")
    simulation.run_until_ended()
    during = dict(simulation.accepted_by)
    for cell in simulation.cells.values():
        cell.follow(map_of("bc", "abc"))
    with pytest.raises(RuntimeError, match=r"the cell a has \d+ running requests"):
        simulation.remove("a")
    simulation.edge = map_of("bc", "abc")
    simulation.run_until_ended()
    simulation.remove("a")
    simulation.sends_again = False
    simulation.run_until_ended()

    for found, names in ((before, "ab"), (during, "abc"), (simulation.accepted_by, "bc")):
        assert found == {tenant: rendezvous(tenant, tuple(names)) for tenant in TENANTS}
    assert simulation.completed_count == simulation.sent_count > 3 * len(TENANTS)
    assert simulation.led_count > 0


def test_call_between_cells_is_repeated_until_lists_agree() -> None:
    """Each cell assigns the tenant to the other."""
    simulation = simulation_of(("a", "b"), 2, 0.001)
    tenant = next(one for one in TENANTS if rendezvous(one, ("a", "b")) == "a")
    simulation.cells["a"].follow(map_of("b", "ab"))
    simulation.cells["b"].follow(map_of("a", "ab"))

    simulation.send(tenant)
    simulation.run_until(1.0)
    assert (simulation.sent_count, simulation.accepted_by) == (1, {})
    simulation.cells["a"].follow(map_of("ab"))
    simulation.run_until(2.5)

    assert simulation.accepted_by == {tenant: "a"}
    assert simulation.cells["a"].completed_count == 1


def test_device_offers_awaited_cells_their_shares_and_admits_no_more() -> None:
    simulation = simulation_of(("a", "b"), 1, 0.001)
    told: dict[str, tuple[int, int]] = {}
    agenda, (device,) = Agenda(), simulation._fleet.devices.values()
    device.max_batch = 4
    shared = SharedDevice(device, agenda, lambda cell, _, credits, reserve: told.update({cell: (credits, reserve)}))
    for cell in ("a", "b"):
        shared.watch(cell)
    assert [shared.admit(cell, 1.0) for cell in ("a", "b", "a")] == [True, True, True]

    agenda.now += MESSAGE_S
    action, given = agenda.pop()
    action(given)

    assert told == {"a": (2, 0), "b": (2, 0)}
    assert shared.held == Counter({"a": 2, "b": 1})
    shared.leave("b")
    shared.release("b")
    action, given = agenda.pop()
    action(given)
    assert told["a"] == (4, device.reserve_count)
