"""Test simulated requests thinned by the live dataplane: fewer steps, slightly lower quality, more in time."""

from dataclasses import replace

import pytest

from lab.emulation.costs import from_latencies
from lab.runs import Outcome, RequestRecord
from lab.simulator import Scenario
from lab.simulator.scenario import SimulatedModel
from pentimento.dataplane import DataplaneSettings
from pentimento.policies.thinning import ThinningMode, ThinningOption
from tests.lab.simulator.scenarios import REQUESTS, arrivals, one_model, run

OPTION = ThinningOption(2, 3, 0.96)


def scenario(mode: ThinningMode) -> Scenario:
    model = SimulatedModel(from_latencies("m", 10, {1: 1.0}), quality=1.0, thinning=(OPTION,))
    settings = DataplaneSettings(thinning=mode)
    return replace(one_model({1: 1.0}), models=(model,), dataplane=settings, answers_late=False)


def test_twice_as_many_make_their_deadline_with_half_the_steps() -> None:
    """One device generates an image a second; two requests a second arrive for ten seconds, each with a deadline of
    two."""
    load = arrivals([number / 2 for number in range(20)], deadline_s=2.0)
    found = {mode: run(scenario(mode), load) for mode in ThinningMode}
    kept = {mode: sum(record.outcome is Outcome.COMPLETED for record in records) for mode, records in found.items()}

    assert kept[ThinningMode.OFF] <= 12
    assert kept[ThinningMode.DEADLINE] >= 15
    assert kept[ThinningMode.LOAD] >= 15
    assert {record.quality for record in found[ThinningMode.DEADLINE]} <= {1.0, 0.96, None}
    assert {record.quality for record in found[ThinningMode.OFF]} <= {1.0, None}


def test_without_load_nothing_is_thinned_unless_it_always_is() -> None:
    for mode in ThinningMode:
        records = run(scenario(mode), arrivals([0.0, 2.0, 4.0], deadline_s=3.0))

        assert [record.quality for record in records] == [0.96 if mode is ThinningMode.ALWAYS else 1.0] * 3


def test_other_numbers_of_steps_were_not_measured() -> None:
    records = run(scenario(ThinningMode.LOAD), arrivals([0.0] * 6, steps=9, deadline_s=30.0))

    assert {record.quality for record in records} == {1.0}


def test_what_a_thinning_keeps_is_that_of_its_very_steps() -> None:
    """Two thinnings to three steps from the second on: the mild one runs other steps, and keeps more quality."""
    mild = replace(OPTION, share=0.98, spacing=1.5)
    model = SimulatedModel(from_latencies("m", 10, {1: 1.0}), quality=1.0, thinning=(OPTION, mild))

    records = run(replace(scenario(ThinningMode.ALWAYS), models=(model,)), arrivals([0.0], deadline_s=9.0))

    assert [record.quality for record in records] == [0.98]


LATE = ThinningOption(6, 2, 0.97)


def midway(mode: ThinningMode, *at_s: float) -> list[RequestRecord]:
    """Run one device with ten steps of a tenth of a second; from the sixth on two of four may run."""
    model = SimulatedModel(from_latencies("m", 10, {1: 1.0}), quality=1.0, thinning=(LATE,))
    records = run(replace(scenario(mode), models=(model,)), arrivals(list(at_s), deadline_s=30.0))
    return sorted(records, key=lambda record: record.arrived_s)


def test_running_image_is_thinned_when_others_arrive() -> None:
    """No other request runs until its third step: with all steps it would end after a second, and it ends after 0.8."""
    first, *others = midway(ThinningMode.LOAD, 0.0, 0.25, 0.25, 0.25, 0.25)

    assert (first.quality, first.ended_s) == (0.97, pytest.approx(0.8))
    assert others[-1].quality == 1.0, "behind the last one nobody waits"


def test_arrival_after_those_steps_changes_nothing() -> None:
    first, *_ = midway(ThinningMode.LOAD, 0.0, 0.65, 0.65, 0.65)

    assert (first.quality, first.ended_s) == (1.0, pytest.approx(1.0))


def test_where_time_alone_counts_others_change_nothing() -> None:
    first, *_ = midway(ThinningMode.DEADLINE, 0.0, 0.25, 0.25, 0.25, 0.25)

    assert first.quality == 1.0


def test_batch_of_whole_requests_waits_for_requests_of_its_instant() -> None:
    """Batches of four take a second. One request waits at the device when the first batch ends, and three get the
    credits of the ended ones; an option that skips no step changes nothing."""
    load = arrivals([0.0, 0.0, 0.0, 0.5, 0.6, 0.6, 0.6], deadline_s=30.0)
    whole = replace(one_model({1: 1.0, 4: 1.0}), device_settings=REQUESTS)
    model = SimulatedModel(from_latencies("m", 10, {1: 1.0, 4: 1.0}), thinning=(ThinningOption(9, 1, 1.0),))
    offered = replace(whole, models=(model,), dataplane=DataplaneSettings(thinning=ThinningMode.LOAD))

    ends = [[record.ended_s for record in run(one, load)] for one in (whole, offered)]

    assert ends[0] == pytest.approx([1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    assert ends[1] == pytest.approx(ends[0])
