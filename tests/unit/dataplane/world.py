"""A world around a dataplane: a journal, workers, a discriminator and clients that answer in any order, late, twice, or
die.

The journal and the workers receive messages at once and in order; the test chooses when their answers arrive. The
world checks its invariants on every step."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import singledispatchmethod

from pentimento.dataplane import Dataplane, DataplaneSettings, effects, events
from pentimento.dataplane.events import AttemptKey, FailureKind
from pentimento.dataplane.requests import WAITING
from pentimento.domain.fleet import Capability
from pentimento.policies.adapter_needs import AdapterHoldings, AdapterNeeds, can_paint
from tests.unit.dataplane.bookkeeping import check_bookkeeping, check_counters
from tests.unit.dataplane.world_parts import JournalRow, Wish, WorldWorker, digest_of_model

LIGHT, HEAVY = "light", "heavy"
QUEUE_LIMIT = 4
THRESHOLD = 0.5
# Wrong counts stay wrong: a check at every event would take longer than the walk.
COUNTED_EVERY = 4
# The discriminator's confidence in the light image of each request, by its number.
CONFIDENCES = (0.9, 0.1, None, math.nan)
# One worker of each model takes LoRAs.
TAKES_LORAS = ("w2", "w3")
# One worker of each model prepares inputs while it denoises; the others need a credit for that.
PREPARERS = ("w1", "w3")
HOLDINGS = AdapterHoldings(frozenset({Capability.LORA}), frozenset({"neon", "mosaic"}), frozenset({"neon"}))
STYLES = tuple(AdapterNeeds(frozenset({Capability.LORA}), frozenset({style})) for style in ("neon", "mosaic"))


class World:
    """`replies`: messages on their way to the dataplane. `rows`: the journal. `answers`: the ends that clients
    received."""

    def __init__(self, **settings: object) -> None:
        self.now = 0.0
        self.epoch = 0
        self.event_count = 0
        self.settings = DataplaneSettings(
            queue_limit=QUEUE_LIMIT,
            confidence_threshold=THRESHOLD,
            **settings,  # type: ignore[arg-type]
        )
        self.rows: dict[str, JournalRow] = {}
        self.wishes: dict[str, Wish] = {}
        self.rejected: dict[str, str] = {}
        self.answers: dict[str, list[str]] = {}
        models = {"w1": LIGHT, "w2": LIGHT, "w3": HEAVY, "w4": HEAVY}
        self.workers = {name: WorldWorker(name, model) for name, model in models.items()}
        for name in TAKES_LORAS:
            self.workers[name].holdings = HOLDINGS
        for name in PREPARERS:
            self.workers[name].preparing_count = 1
        # The stage and the model of each attempt.
        self.paints: dict[AttemptKey, tuple[int, str]] = {}
        self.replies: list[events.Event] = []
        self.said: list[events.Event] = []
        # All events of this frontdoor: an event that must be durable first precedes its consequences.
        self.heard: set[events.Event] = set()
        self.granted: set[AttemptKey] = set()
        self.settled_grants: set[AttemptKey] = set()
        # Effects of this frontdoor by kind, and ends by their kind.
        self.asked: Counter[str] = Counter()
        # Called for every frontdoor before its first event.
        self.on_start: Callable[[World], None] = lambda world: None
        self.start_frontdoor()

    def start_frontdoor(self, *, standby: bool = False) -> None:
        """Start the first frontdoor, or a new one after a kill: messages to the old one are lost, the journal is
        not."""
        self.epoch += 1
        self.dataplane = Dataplane(0 if standby else self.epoch, self.settings)
        self.on_start(self)
        self.replies.clear()
        self.said.clear()
        self.heard.clear()
        self.granted.clear()
        self.settled_grants.clear()
        self.asked.clear()
        for worker in self.workers.values():
            worker.connected = worker.heard = False
            worker.told = 0
        if standby:
            self.arrive(Wish("tenant", self.now + 1.0))
            assert next(reversed(self.rejected.values())) == "STANDBY"
            self.send(events.TookOver(self.epoch))
        unfinished = tuple(self._recovered(name) for name, row in self.rows.items() if not row.ends)
        self.send(events.Recovered(unfinished))
        self.send(events.TimePassed())

    def _recovered(self, request_id: str) -> events.RecoveredRequest:
        row, wish = self.rows[request_id], self.wishes[request_id]
        model = row.model or LIGHT
        return events.RecoveredRequest(
            request_id,
            wish.tenant,
            model,
            1.0,
            wish.deadline,
            route_pinned=row.attempt_number > 0,
            model_digest=digest_of_model(model) if row.attempt_number else "",
            attempt_number=row.attempt_number,
            fencing_token=row.newest_token,
            worker_id=row.worker_id,
            cascade=wish.cascade,
            cascade_stage=row.cascade_stage,
            needs=wish.needs,
            has_inputs=wish.has_inputs,
        )

    # -- what the test does to the world -------------------------------------------------------------------------

    def send(self, event: events.Event) -> None:
        self.heard.add(event)
        for effect in self.dataplane.on_event(self.now, event):
            self.asked[effect.end.name if isinstance(effect, effects.DeliverEnd) else type(effect).__name__] += 1
            self._interpret(effect)
        self.event_count += 1
        if self.event_count % COUNTED_EVERY == 0:
            check_bookkeeping(self.dataplane.state)
        check_counters(self.dataplane.state, self.asked)

    def arrive(self, wish: Wish) -> None:
        request_id, *others = (f"r{len(self.wishes) + number}" for number in range(wish.count))
        self.wishes.update(dict.fromkeys((request_id, *others), wish))
        waiting = [
            request.tenant
            for request in self.dataplane.state.requests.values()
            if request.phase in WAITING and request.pool == LIGHT
        ]
        asked = (request_id, wish.tenant, LIGHT, 1.0, wish.deadline)
        arrived = events.RequestArrived(*asked, cascade=wish.cascade, needs=wish.needs, others=tuple(others))
        self.send(replace(arrived, has_inputs=wish.has_inputs))
        share = QUEUE_LIMIT // len({*waiting, wish.tenant})
        full = waiting.count(wish.tenant) + wish.count > share or len(waiting) + wish.count > 2 * QUEUE_LIMIT
        reason = self.rejected.get(request_id, "")
        assert {self.rejected.get(other, "") for other in others} <= {reason}
        if self.dataplane.state.epoch:
            # A quota rejects before the queue is checked.
            limited = reason == "TENANT_QUOTA" and wish.tenant in self.dataplane.state.meters
            assert limited or (reason == "QUEUE_FULL") == full, reason
            assert limited or reason in ("", "QUEUE_FULL", "PREDICTED_LATE")

    def deliver(self, index: int) -> None:
        event = self.replies.pop(index % len(self.replies))
        self.said.append(event)
        self.send(event)

    def repeat(self, index: int) -> None:
        self.send(self.said[index % len(self.said)])

    def finish_attempt(self, worker: WorldWorker, kind: FailureKind | None) -> None:
        key = next(iter(worker.running))
        del worker.running[key]
        self.replies.append(events.AttemptFailed(*key, kind) if kind else events.AttemptFinished(*key))

    def yield_place(self, worker: WorldWorker) -> None:
        key = next(iter(worker.running))
        worker.yielded.add(key)
        self.replies.append(events.AttemptYielded(*key))

    def report(self, worker: WorldWorker) -> None:
        # Sent once, as long as both processes live.
        holdings = None if worker.told == worker.generation else worker.holdings
        worker.connected = worker.heard = True
        worker.told = worker.generation
        self.send(
            events.WorkerReported(
                worker.worker_id,
                worker.model,
                digest_of_model(worker.model),
                worker.generation,
                worker.credit_count,
                pinned=True,
                running=frozenset(worker.running),
                pairable=True,
                reserve_count=worker.reserve_count,
                holdings=holdings,
                preparing_count=worker.preparing_count,
            )
        )

    def silence(self, worker: WorldWorker) -> None:
        """Lose contact with the worker, which continues its work."""
        worker.connected = False
        self.send(events.WorkerLost(worker.worker_id, worker.generation))

    def kill(self, worker: WorldWorker) -> None:
        worker.alive = worker.connected = False
        self.replies += [events.AttemptFailed(*key, FailureKind.WORKER_LOST) for key in worker.running]
        self.replies.append(events.WorkerLost(worker.worker_id, worker.generation))
        worker.running.clear()

    def restart(self, worker: WorldWorker) -> None:
        worker.alive, worker.generation = True, worker.generation + 1
        self.report(worker)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.send(events.TimePassed())

    def settle(self) -> None:
        """Make every part healthy and let everything end."""
        for _ in range(400):
            for worker in self.workers.values():
                self.report(worker) if worker.alive else self.restart(worker)
                if worker.running:
                    self.finish_attempt(worker, None)
            while self.replies:
                self.deliver(0)
            wakeup = self.dataplane.next_wakeup()
            if not self.dataplane.state.requests and wakeup is None:
                return
            if wakeup is not None:
                self.pass_time(max(wakeup - self.now, 0.0))
        raise AssertionError(f"never came to rest: {self.dataplane.state.requests}")

    def check_at_rest(self) -> None:
        """Assert that every accepted request has one end, its client received it, and every grant and credit is
        back."""
        for request_id, row in self.rows.items():
            assert len(row.ends) == 1, (request_id, row)
        for request_id, answers in self.answers.items():
            assert answers == self.rows[request_id].ends
        assert self.granted == self.settled_grants
        state = self.dataplane.state
        check_bookkeeping(state)
        for pool in state.pools.values():
            assert pool.waiting_count == pool.running_count == 0
            assert not pool.tenants
        for worker in state.workers.values():
            assert not (worker.in_flight or worker.begun or worker.yielded)
        assert not any(pool.ends for pool in state.pools.values())
        assert not (state.attempt_workers or state.peers or state.unpersisted or state.orphans)
        assert not any(lane.reruns or lane.set_aside or lane.fresh or lane.spare for lane in state.lanes.values())

    # -- what the dataplane asks for -------------------------------------------------------------------------------

    @singledispatchmethod
    def _interpret(self, effect: effects.Effect) -> None:
        """Ignore an effect that does not concern the world."""

    @_interpret.register
    def _reject(self, effect: effects.Reject) -> None:
        self.rejected[effect.request_id] = effect.reason

    @_interpret.register
    def _persist_accepted(self, effect: effects.PersistAccepted) -> None:
        self.rows[effect.request_id] = JournalRow()
        self.replies.append(events.AcceptPersisted(effect.request_id))

    @_interpret.register
    def _announce(self, effect: effects.Announce) -> None:
        assert events.AcceptPersisted(effect.request_id) in self.heard

    @_interpret.register
    def _reserve_pair(self, effect: effects.ReservePair) -> None:
        assert effect.peer_id != effect.worker_id

    @_interpret.register
    def _score(self, effect: effects.Score) -> None:
        assert events.AttemptFinished(effect.request_id, effect.fencing_token) in self.heard
        confidence = CONFIDENCES[_number(effect.request_id) % len(CONFIDENCES)]
        self.replies.append(events.Scored(effect.request_id, effect.fencing_token, confidence))

    @_interpret.register
    def _persist_end(self, effect: effects.PersistEnd) -> None:
        self._end(effect.request_id, effect.end.value)

    @_interpret.register
    def _deliver(self, effect: effects.Deliver) -> None:
        row = self.rows[effect.request_id]
        assert row.ends == ["completed"] and row.picture_token == effect.picture_token
        assert events.ResultCommitted(effect.request_id, effect.fencing_token, True) in self.heard
        self.answers.setdefault(effect.request_id, []).append("completed")

    @_interpret.register
    def _deliver_end(self, effect: effects.DeliverEnd) -> None:
        assert self.rows[effect.request_id].ends == [effect.end.value]
        assert events.EndPersisted(effect.request_id, True) in self.heard
        self.answers.setdefault(effect.request_id, []).append(effect.end.value)

    @_interpret.register
    def _deliver_recorded(self, effect: effects.DeliverRecorded) -> None:
        self.answers.setdefault(effect.request_id, []).append(*self.rows[effect.request_id].ends)

    @_interpret.register
    def _settle_grant(self, effect: effects.ReleaseGrant | effects.CommitCacheEntries) -> None:
        key = (effect.request_id, effect.fencing_token)
        assert key not in self.settled_grants
        self.settled_grants.add(key)

    @_interpret.register
    def _resolve(self, effect: effects.ResolveRoute) -> None:
        assert effect.request_id in self.rows
        wish, stage = self.wishes[effect.request_id], effect.cascade_stage
        model = wish.cascade[stage] if wish.cascade else LIGHT
        spare = (events.RouteOption(HEAVY, digest_of_model(HEAVY), 2.0),) if wish.spare and not stage else ()
        route = events.RouteResolved(effect.request_id, model, digest_of_model(model), 1.0, stage, spare, wish.pair)
        self.replies.append(route)

    @_interpret.register
    def _persist_attempt(self, effect: effects.PersistAttempt) -> None:
        row, wish = self.rows[effect.request_id], self.wishes[effect.request_id]
        assert effect.fencing_token > row.newest_token
        assert self.now < wish.deadline
        seen, real = self.dataplane.state.workers[effect.worker_id], self.workers[effect.worker_id]
        assert seen.used_credits <= seen.credit_count + seen.reserve_count + seen.preparing_count
        painted = seen.in_flight.keys() - seen.yielded.keys() - seen.preparing.keys()
        if seen.used_credits > seen.credit_count and (effect.request_id, effect.fencing_token) in painted:
            assert len({self.wishes[request_id].deadline for request_id, _ in painted}) > 1
        held = {*seen.in_flight, *real.running} - real.yielded
        assert not real.heard or len(held) <= real.most_attempts
        # The stage's route is pinned by its first attempt.
        pinned = row.attempt_number > 0 and row.cascade_stage == effect.cascade_stage
        planned = HEAVY if effect.option else (wish.cascade[effect.cascade_stage] if wish.cascade else LIGHT)
        model = row.model if pinned else planned
        assert real.model == model
        assert can_paint(wish.needs, real.holdings)
        won = not row.ends
        if won:
            row.newest_token, row.attempt_number = effect.fencing_token, effect.attempt_number
            row.worker_id, row.cascade_stage, row.model = effect.worker_id, effect.cascade_stage, model
        self.paints[effect.request_id, effect.fencing_token] = (effect.cascade_stage, model)
        self.granted.add((effect.request_id, effect.fencing_token))
        self.replies.append(events.AttemptPersisted(effect.request_id, effect.fencing_token, won))

    @_interpret.register
    def _execute(self, effect: effects.Execute) -> None:
        row, worker = self.rows[effect.request_id], self.workers[effect.worker_id]
        key = (effect.request_id, effect.fencing_token)
        assert row.newest_token == effect.fencing_token and not row.ends
        assert events.AttemptPersisted(*key) in self.heard
        assert self.now < effect.deadline == self.wishes[effect.request_id].deadline
        if not worker.alive:
            self.replies.append(events.AttemptFailed(*key, FailureKind.WORKER_LOST))
        elif worker.generation != effect.worker_generation:
            self.replies.append(events.AttemptFailed(*key, FailureKind.NOT_HELD))
        elif len(worker.running.keys() - worker.yielded) >= worker.most_attempts:
            self.replies.append(events.AttemptFailed(*key, FailureKind.NO_CREDIT))
        else:
            worker.running[key] = None

    @_interpret.register
    def _attach(self, effect: effects.Attach) -> None:
        key = (effect.request_id, effect.fencing_token)
        self.granted.add(key)
        if key not in self.workers[effect.worker_id].running:
            self.replies.append(events.AttemptFailed(*key, FailureKind.GONE))

    @_interpret.register
    def _thin(self, effect: effects.ThinAttempt) -> None:
        """Ignore the request to leave out steps, as workers may."""

    @_interpret.register
    def _stop(self, effect: effects.StopAttempt) -> None:
        worker = self.workers[effect.worker_id]
        key = (effect.request_id, effect.fencing_token)
        if worker.connected and key in worker.running:
            del worker.running[key]
            self.replies.append(events.AttemptFailed(*key, FailureKind.STOPPED))

    @_interpret.register
    def _commit(self, effect: effects.CommitResult) -> None:
        """Commit under the newest token only; an image that did not pass its discriminator gets a label."""
        row, wish = self.rows[effect.request_id], self.wishes[effect.request_id]
        picture = (effect.request_id, effect.picture_token)
        assert events.AttemptFinished(*picture) in self.heard
        stage, _ = self.paints[picture]
        confidence = CONFIDENCES[_number(effect.request_id) % len(CONFIDENCES)]
        last = stage + 1 >= len(wish.cascade)
        if last or confidence == CONFIDENCES[0]:
            assert effect.degraded in ("", "UNSCORED")
        else:
            assert effect.degraded
        won = not row.ends and row.newest_token == effect.fencing_token
        if won:
            row.ends.append("completed")
            row.picture_token = effect.picture_token
        self.replies.append(events.ResultCommitted(effect.request_id, effect.fencing_token, won))

    def _end(self, request_id: str, end: str) -> None:
        row = self.rows[request_id]
        won = not row.ends
        row.ends += [end] * won
        self.replies.append(events.EndPersisted(request_id, won))


def _number(request_id: str) -> int:
    return int(request_id[1:])
