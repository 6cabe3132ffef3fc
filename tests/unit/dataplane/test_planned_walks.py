"""Walks under plans that come and go: pools lose their workers and get them back while requests wait in them."""

import random
from dataclasses import replace

import pytest

from pentimento.dataplane import effects, events
from pentimento.domain.fleet import Plan, PoolPlan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.plan.entry import EVERY_START
from tests.unit.dataplane.breaking_world import BreakingWorld
from tests.unit.dataplane.test_random_walks import Walk
from tests.unit.dataplane.world import HEAVY, LIGHT
from tests.unit.dataplane.world_parts import digest_of_model

WORKERS = {LIGHT: ("w1", "w2"), HEAVY: ("w3", "w4")}


class PlannedWorld(BreakingWorld):
    """A world that sends every request to the pool of the plan; a later plan may move it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sequence = 0
        self.anew_count = 0
        super().__init__(fall_back=rng.random() < 0.8)

    def send(self, event: events.Event) -> None:
        if isinstance(event, events.RequestArrived):
            event = replace(event, planned=True)
        if isinstance(event, events.Recovered):
            event = events.Recovered(tuple(replace(one, planned=True) for one in event.requests))
        super().send(event)

    def plan(self, *staffed: str) -> None:
        """Plan workers for these pools; requests go to the first."""
        self.sequence += 1
        pools = tuple(
            PoolPlan(name, name, WORKERS[name] if name in staffed else (), EVERY_START if name == staffed[0] else ())
            for name in (LIGHT, HEAVY)
        )
        self.send(events.PlanReceived(Plan(PlanVersion(1, self.sequence), pools=pools)))

    def _interpret(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.CommitResult):
            self._commit_unscored(effect)
        elif isinstance(effect, effects.ResolveRoute) and effect.anew:
            self._restage(effect)
        else:
            super()._interpret(effect)

    def _commit_unscored(self, effect: effects.CommitResult) -> None:
        """Commit without a score: the plan routes requests, and has no cascade."""
        row = self.rows[effect.request_id]
        assert events.AttemptFinished(effect.request_id, effect.picture_token) in self.heard
        won = not row.ends and row.newest_token == effect.fencing_token
        if won:
            row.ends.append("completed")
            row.picture_token = effect.picture_token
        self.replies.append(events.ResultCommitted(effect.request_id, effect.fencing_token, won))

    def _restage(self, effect: effects.ResolveRoute) -> None:
        self.anew_count += 1
        wish, plan = self.wishes[effect.request_id], self.dataplane.state.plan
        assert plan is not None
        before = wish.cascade or (LIGHT,)
        # Requests that asked before, and got no answer in time, have no stage for it.
        before = before[: effect.cascade_stage]
        (model,) = (pool.pool for pool in plan.pools if pool.routes)
        assert effect.cascade_stage == len(before)
        self.wishes[effect.request_id] = replace(wish, cascade=(*before, model))
        route = events.RouteResolved(effect.request_id, model, digest_of_model(model), 1.0, effect.cascade_stage)
        self.replies.append(replace(route, cascade=(*before, model)))


class PlannedWalk(Walk):
    """A walk under plans."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.world = self.planned = PlannedWorld(rng)
        self._steps |= {self._plan: 4, self._lose: 6}

    def _plan(self) -> None:
        self.planned.plan(*self._rng.choice([(LIGHT, HEAVY), (LIGHT,), (HEAVY,), (HEAVY, LIGHT)]))


@pytest.mark.parametrize("seeds", [range(5), range(5, 10)])
def test_walk_under_plans_keeps_every_promise(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        walks = [PlannedWalk(rng) for _ in range(10)]

        for walk in walks:
            walk.run()

        assert sum(walk.planned.anew_count for walk in walks), seed
