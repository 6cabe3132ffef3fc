"""A world around a dataplane: a journal, workers and clients that answer in any order, late, twice, or die.

What the journal and the workers are told happens at once and in order; what they say back is delivered when the test
chooses. The world checks on every step what must hold on every step.
"""

from dataclasses import dataclass, field

from pentimento.dataplane import Dataplane, DataplaneSettings, effects, events
from pentimento.dataplane.events import AttemptKey, FailureKind
from pentimento.dataplane.state import WAITING

DIGEST = "digest"
QUEUE_LIMIT = 4


@dataclass
class WorldWorker:
    worker_id: str
    generation: int = 1
    credit_count: int = 1
    alive: bool = True
    # Whether its stream of credits is up as the frontdoor sees it.
    connected: bool = False
    # Whether all that it runs has been told to this frontdoor, or came from it.
    heard: bool = False
    running: dict[AttemptKey, None] = field(default_factory=dict)


@dataclass
class JournalRow:
    newest_token: int = 0
    attempt_number: int = 0
    worker_id: str = ""
    ends: list[str] = field(default_factory=list)


class World:
    """`replies`: words on their way to the dataplane. `rows`: the journal. `answers`: what clients were told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.epoch = 0
        self.rows: dict[str, JournalRow] = {}
        self.arrived: dict[str, float] = {}
        self.rejected: set[str] = set()
        self.answers: dict[str, list[str]] = {}
        self.workers = {name: WorldWorker(name) for name in ("w1", "w2", "w3")}
        self.replies: list[events.Event] = []
        self.said: list[events.Event] = []
        # Everything this frontdoor has heard: what must be durable first is in here before what follows it.
        self.heard: set[events.Event] = set()
        self.granted: set[AttemptKey] = set()
        self.settled_grants: set[AttemptKey] = set()
        self.start_frontdoor()

    def start_frontdoor(self) -> None:
        """The first one, or a new one after a kill: what was on its way to the old one is lost, the journal is not."""
        self.epoch += 1
        self.dataplane = Dataplane(self.epoch, DataplaneSettings(queue_limit=QUEUE_LIMIT))
        self.replies.clear()
        self.said.clear()
        self.heard.clear()
        self.granted.clear()
        self.settled_grants.clear()
        for worker in self.workers.values():
            worker.connected = worker.heard = False
        unfinished = tuple(self._recovered(name) for name, row in self.rows.items() if not row.ends)
        self.send(events.Recovered(unfinished))

    def _recovered(self, request_id: str) -> events.RecoveredRequest:
        row = self.rows[request_id]
        return events.RecoveredRequest(
            request_id,
            "tenant",
            "m",
            1.0,
            self.arrived[request_id],
            routed=row.attempt_number > 0,
            model_digest=DIGEST if row.attempt_number else "",
            attempt_number=row.attempt_number,
            fencing_token=row.newest_token,
            worker_id=row.worker_id,
        )

    # -- what the test does to the world -------------------------------------------------------------------------

    def send(self, event: events.Event) -> None:
        self.heard.add(event)
        for effect in self.dataplane.on_event(self.now, event):
            self._interpret(effect)

    def arrive(self, deadline: float) -> None:
        request_id = f"r{len(self.arrived)}"
        self.arrived[request_id] = deadline
        waiting = sum(request.phase in WAITING for request in self.dataplane.state.requests.values())
        self.send(events.RequestArrived(request_id, "tenant", "m", 1.0, deadline))
        assert (request_id in self.rejected) == (waiting >= QUEUE_LIMIT)

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

    def report(self, worker: WorldWorker) -> None:
        worker.connected = worker.heard = True
        self.send(
            events.WorkerReported(
                worker.worker_id,
                "m",
                DIGEST,
                worker.generation,
                worker.credit_count,
                pinned=True,
                running=frozenset(worker.running),
            )
        )

    def silence(self, worker: WorldWorker) -> None:
        """It is not heard of, but goes on working."""
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

    def settle(self) -> None:
        """Everybody becomes healthy and everything that is under way comes to its end."""
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
                self.now = max(self.now, wakeup)
                self.send(events.TimePassed())
        raise AssertionError(f"never came to rest: {self.dataplane.state.requests}")

    # -- what the dataplane asks for -------------------------------------------------------------------------------

    def _interpret(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Reject():
                self.rejected.add(effect.request_id)
            case effects.PersistAccepted():
                self.rows[effect.request_id] = JournalRow()
                self.replies.append(events.AcceptPersisted(effect.request_id))
            case effects.Announce():
                assert events.AcceptPersisted(effect.request_id) in self.heard
            case effects.ResolveRoute():
                assert effect.request_id in self.rows
                self.replies.append(events.RouteResolved(effect.request_id, "m", DIGEST, 1.0))
            case effects.PersistAttempt():
                self._persist_attempt(effect)
            case effects.Execute():
                self._execute(effect)
            case effects.Attach():
                self._attach(effect)
            case effects.StopAttempt():
                self._stop(effect)
            case effects.CommitResult():
                row = self.rows[effect.request_id]
                won = not row.ends and row.newest_token == effect.fencing_token
                row.ends += ["completed"] * won
                self.replies.append(events.ResultCommitted(effect.request_id, effect.fencing_token, won))
            case effects.PersistEnd():
                row = self.rows[effect.request_id]
                won = not row.ends
                row.ends += [effect.end.value] * won
                self.replies.append(events.EndPersisted(effect.request_id, won))
            case effects.Deliver():
                assert self.rows[effect.request_id].ends == ["completed"]
                assert events.ResultCommitted(effect.request_id, effect.fencing_token, True) in self.heard
                self.answers.setdefault(effect.request_id, []).append("completed")
            case effects.DeliverEnd():
                assert self.rows[effect.request_id].ends == [effect.end.value]
                assert events.EndPersisted(effect.request_id, True) in self.heard
                self.answers.setdefault(effect.request_id, []).append(effect.end.value)
            case effects.DeliverRecorded():
                self.answers.setdefault(effect.request_id, []).append(*self.rows[effect.request_id].ends)
            case effects.ReleaseGrant() | effects.CommitCacheEntries():
                key = (effect.request_id, effect.fencing_token)
                assert key not in self.settled_grants
                self.settled_grants.add(key)

    def _persist_attempt(self, effect: effects.PersistAttempt) -> None:
        row = self.rows[effect.request_id]
        assert effect.fencing_token > row.newest_token
        seen, real = self.dataplane.state.workers[effect.worker_id], self.workers[effect.worker_id]
        assert seen.used_credits <= seen.credit_count
        assert not real.heard or len({*seen.in_flight, *real.running}) <= real.credit_count
        won = not row.ends
        if won:
            row.newest_token, row.attempt_number = effect.fencing_token, effect.attempt_number
            row.worker_id = effect.worker_id
        self.granted.add((effect.request_id, effect.fencing_token))
        self.replies.append(events.AttemptPersisted(effect.request_id, effect.fencing_token, won))

    def _execute(self, effect: effects.Execute) -> None:
        row, worker = self.rows[effect.request_id], self.workers[effect.worker_id]
        key = (effect.request_id, effect.fencing_token)
        assert row.newest_token == effect.fencing_token and not row.ends
        assert events.AttemptPersisted(*key) in self.heard
        if not worker.alive:
            self.replies.append(events.AttemptFailed(*key, FailureKind.WORKER_LOST))
        elif worker.generation != effect.worker_generation:
            self.replies.append(events.AttemptFailed(*key, FailureKind.NOT_HELD))
        elif len(worker.running) >= worker.credit_count:
            self.replies.append(events.AttemptFailed(*key, FailureKind.NO_CREDIT))
        else:
            worker.running[key] = None

    def _attach(self, effect: effects.Attach) -> None:
        key = (effect.request_id, effect.fencing_token)
        self.granted.add(key)
        if key not in self.workers[effect.worker_id].running:
            self.replies.append(events.AttemptFailed(*key, FailureKind.GONE))

    def _stop(self, effect: effects.StopAttempt) -> None:
        worker = self.workers[effect.worker_id]
        key = (effect.request_id, effect.fencing_token)
        if worker.connected and key in worker.running:
            del worker.running[key]
            self.replies.append(events.AttemptFailed(*key, FailureKind.STOPPED))
