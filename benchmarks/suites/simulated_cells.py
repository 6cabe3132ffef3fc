"""Simulate many cells over one fleet: throughput, fairness of credits, moves of tenants, next to their theory.

Dataplanes, tenants' gates and the division of credits are the live code, in virtual time (`cell_simulation`). A request
takes `CORE_S` of its cell's core, an image `IMAGE_S` of a device by the number in a batch.

Throughput: every tenant has a request running, and the cores limit all cells. In theory N cells carry N times the
requests of one. Fairness: a hundredth of the devices with longer images are the limit; every other cell is greedy. In
theory each cell has an equal share, Jain's index 1. Moves: a cell is added, another one leaves, and the processes learn
of each list one after the other. In theory 1/(N+1) of the tenants move, to the added cell or from the leaving one only.
"""

import statistics
import time
from collections.abc import Sequence
from random import Random

from benchmarks.suites.cell_simulation import CellSimulation, map_of
from lab.emulation.costs import from_latencies
from lab.runs.figures import jain_index
from lab.runs.measure import Figure, Options, at_least, at_most, counted, informative, measured, share
from lab.simulator.scenario import Scenario, SimulatedDevices, SimulatedModel
from pentimento.dataplane import DataplaneSettings
from pentimento.policies.plan.inputs import hold_resident
from pentimento.policies.plan.registry import ServingPolicy

SEED = 1
# Processor seconds of a request in a frontdoor, by `cells`.
CORE_S = 0.003
IMAGE_S = {1: 0.30, 2: 0.36}
STEPS, VARIATION = 20, 0.05
# Long images, at which the devices are the limit.
SLOWER = 10.0
TENANTS_OF_A_CELL, MOVED_TENANTS_OF_A_CELL = 200, 10
# Requests that each tenant has running.
GREEDY, MODEST = 8, 2
ROLL_S = 5.0
# Full devices hold an attempt of every cell, and tell every cell of each change, so fewer are simulated.
FULL_SHARE, MOVES_SHARE = 100, 10
# Equal windows of the measured time. A device serves the cells in turn, so that single windows are uneven.
WINDOWS = 10
# The tenants' first requests come at once: their waits even out meanwhile.
WARM_S = 2.0
_RESIDENT = ServingPolicy("resident", hold_resident, plans_batches=False, moves_models=False)


def simulated_figures(cells: int, devices: int, options: Options) -> list[Figure]:
    """Return the figures of that number of cells and devices."""
    window_s, images = (0.2, 16) if options.quick else (1.0, 200)
    return [
        *throughput(cells, devices, window_s),
        *fairness(cells, devices // FULL_SHARE, images),
        *moves(cells, devices // MOVES_SHARE),
    ]


def scenario_of(devices: int, slower: float = 1.0) -> Scenario:
    """Return a fleet of equal devices with one model."""
    seconds = {size: one * slower for size, one in IMAGE_S.items()}
    return Scenario(
        "cells",
        (SimulatedModel(from_latencies("m", STEPS, seconds, variation=VARIATION)),),
        (SimulatedDevices(devices, "m"),),
        _RESIDENT,
        dataplane=DataplaneSettings(queue_limit=1_000_000),
        default_model="m",
    )


def names_of(cells: int) -> tuple[str, ...]:
    return tuple(f"cell-{number}" for number in range(cells))


def tenants_of(count: int) -> tuple[str, ...]:
    return tuple(f"tenant-{number}" for number in range(count))


def throughput(cells: int, devices: int, window_s: float) -> list[Figure]:
    """Return the requests a second of the cells ÷ of one over the same devices, and what an event costs."""
    tenants = tenants_of(cells * TENANTS_OF_A_CELL)
    rates, costs_us = [], []
    for number in (1, cells):
        simulation = CellSimulation(scenario_of(devices), names_of(number), CORE_S, Random(SEED))
        for tenant in tenants:
            simulation.send(tenant)
        simulation.run_until(WARM_S)
        before, events, began_s = simulation.completed_count, simulation.events_count, time.process_time()
        simulation.run_until(WARM_S + window_s)
        rates.append((simulation.completed_count - before) / window_s)
        costs_us.append(1e6 * (time.process_time() - began_s) / (simulation.events_count - events))
    of = f"{cells} cells, {devices} devices"
    return [
        Figure(f"requests/s of {of} ÷ of 1 cell", rates[1] / rates[0], at_least(0.95 * cells, "x")),
        Figure("the same in theory", cells, informative("x")),
        Figure("requests/s of 1 cell", rates[0], informative("1/s")),
        Figure(f"processor time of an event, {of}", costs_us[1], informative("us")),
        Figure(f"processor time of an event, 1 cell, {devices} devices", costs_us[0], informative("us")),
    ]


def fairness(cells: int, devices: int, images: int) -> list[Figure]:
    """Return Jain's index of the cells' images, with every other cell greedy, for `images` of a cell in the mean."""
    names, image_s = names_of(cells), SLOWER * max(IMAGE_S.values())
    simulation = CellSimulation(scenario_of(devices, SLOWER), names, CORE_S, Random(SEED))
    greedy = set(names[::2])
    # Each cell has more requests than its share of the places.
    count = max(TENANTS_OF_A_CELL, devices * max(IMAGE_S) // cells)
    for tenant in tenants_of(cells * count):
        for _ in range(GREEDY if simulation.edge.home(tenant) in greedy else MODEST):
            simulation.send(tenant)
    simulation.run_until(2 * image_s)
    served: list[tuple[int, ...]] = []
    window_s = image_s * max(1, images * cells // (devices * max(IMAGE_S) * WINDOWS))
    for _ in range(WINDOWS):
        before = [simulation.cells[name].completed_count for name in names]
        simulation.run_until(simulation.now + window_s)
        after = [simulation.cells[name].completed_count for name in names]
        served.append(tuple(late - early for early, late in zip(before, after, strict=True)))
    return [
        measured(
            f"Jain's index of {cells} cells over {devices} full devices, every other greedy",
            served,
            index_of_all,
            at_least(0.95),
        ),
        Figure("the same in theory", 1.0, informative()),
        Figure(
            "images a second of the fleet ÷ its capacity", rate_share(served, devices, image_s, window_s), informative()
        ),
    ]


def index_of_all(served: Sequence[Sequence[int]]) -> float:
    """Return Jain's index of the cells' images in all windows together."""
    return jain_index([sum(one) for one in zip(*served, strict=True)])


def rate_share(served: Sequence[Sequence[int]], devices: int, image_s: float, window_s: float) -> float:
    """Return the mean rate of all cells in windows of that length ÷ the most that the devices can do."""
    capacity = devices * max(IMAGE_S) / image_s
    return statistics.fmean(sum(one) for one in served) / window_s / capacity


def moves(cells: int, devices: int) -> list[Figure]:
    """Return the figures of a cell that is added, and of another one that leaves."""
    old = names_of(cells)
    new, left = (*old, "added"), (*old[1:], "added")
    tenants = tenants_of(cells * MOVED_TENANTS_OF_A_CELL)
    simulation = CellSimulation(scenario_of(devices, SLOWER), old, CORE_S, Random(SEED))
    for tenant in tenants:
        simulation.send(tenant)
    simulation.run_until_ended()
    found = [dict(simulation.accepted_by)]
    simulation.add("added", map_of(new, old))
    for lists in ((new, old), (left, new)):
        roll(simulation, lists)
        simulation.run_until_ended()
        found.append(dict(simulation.accepted_by))
    simulation.remove(old[0])
    simulation.sends_again = False
    simulation.run_until_ended()
    added, gone = moved_between(found[0], found[1]), moved_between(found[1], found[2])
    wrong = [one for one in added if found[1][one] != "added"] + [one for one in gone if found[1][one] != old[0]]
    lost, theory = simulation.sent_count - simulation.completed_count, 1 / (cells + 1)
    return [
        share(f"tenants that move to a cell added to {cells}", len(added), len(tenants), at_most(2 * theory)),
        share(f"tenants that move when 1 of {cells + 1} leaves", len(gone), len(tenants), at_most(2 * theory)),
        Figure("the same in theory", theory, informative()),
        Figure("tenants that move from or to another cell", len(wrong), at_most(0, "tenants")),
        counted("requests lost while tenants move", lost, simulation.sent_count, at_most(0, "requests")),
        Figure("calls led to another cell", simulation.led_count, informative("calls")),
    ]


def moved_between(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the tenants with another cell."""
    return [tenant for tenant, cell in before.items() if after[tenant] != cell]


def roll(simulation: CellSimulation, lists: Sequence[Sequence[str]]) -> None:
    """Let all cells and the edge learn of new lists one after the other, in a drawn order; changes the simulation."""
    cells = map_of(*lists)
    processes = Random(SEED).sample([*simulation.cells, ""], len(simulation.cells) + 1)
    for name in processes:
        simulation.run_until(simulation.now + ROLL_S / len(processes))
        if name:
            simulation.cells[name].follow(cells)
        else:
            simulation.edge = cells
