"""Measure the time of a live run's requests outside queues and devices: the journal, and transport."""

import math
from collections.abc import Sequence
from dataclasses import replace

from lab.runs import RequestRecord
from lab.simulator import Scenario
from lab.simulator.scenario import Delays
from pentimento.devices.profile import Cost

# delays' stages, by the name of the simulator's
DELAYS = {"accept": "accept", "route": "route", "attempt": "attempt", "execute": "send", "result": "receive"}
SCORE = "score"


def with_delays(scenario: Scenario, records: Sequence[RequestRecord]) -> Scenario:
    return replace(scenario, delays=delays_of(records, scenario.delays))


def delays_of(records: Sequence[RequestRecord], known: Delays) -> Delays:
    """Return the delays outside queues and devices: the journal, and transport."""
    answered = [spent for record in records if record.outcome.answered and (spent := _spent(record))]
    if not answered:
        raise RuntimeError("the calibration run answered no request")
    cost = {name: cost_of([spent[name] for spent in answered]) for name in answered[0]}
    scored = [stage.ended_s - stage.began_s for record in records for stage in record.stages if stage.name == SCORE]
    return replace(known, score=cost_of(scored) if scored else known.score, **cost)


def cost_of(samples_s: Sequence[float]) -> Cost:
    """Return costs without the slowest hundredth: a stall of the whole machine is no delay of the suite."""
    ascending = sorted(samples_s)
    return Cost.of(ascending[: math.ceil(0.99 * len(ascending))])


def _spent(record: RequestRecord) -> dict[str, float] | None:
    """Return the delays of an image with one attempt; the way back begins at its last stage's end."""
    stages = {stage.name: stage for stage in record.stages}
    if record.deferred or len(stages) < len(record.stages) or not stages.keys() >= {*DELAYS.values()}:
        return None
    spent = {name: stages[stage].ended_s - stages[stage].began_s for name, stage in DELAYS.items()}
    answered_s = max(stage.ended_s for stage in record.stages)
    return {**spent, "answer": max(record.ended_s - answered_s, 0.0)}
