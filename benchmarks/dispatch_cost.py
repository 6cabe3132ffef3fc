"""What the dataplane costs: processor time an event, at 16 and at 1,000 workers, with 10,000 requests queued.

Requests of many tenants live their whole life (arrival, journal, route, attempt, picture, commit) while the queue stays
as long as it is; workers report in between. Everything is pure Python in this process: no journal, no sockets.
"""

import gc
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable

from benchmarks.report import Figure, Options, at_most, measured, parse_options, publish
from pentimento.dataplane import Dataplane, DataplaneSettings, effects, events

QUEUED = 10_000
TENANTS = 50
CREDITS = 4
LIVES_A_SAMPLE = 100
PROFILE = events.SpeedProfile("m", ((1, 0.02), (2, 0.026), (4, 0.04)), fixed_s=0.05)


class LoadedDataplane:
    """A dataplane under full load, and the words that keep it there. Times advance by a millisecond an event."""

    def __init__(self, worker_count: int) -> None:
        self.dataplane = Dataplane(1, DataplaneSettings(queue_limit=10 * QUEUED, drop_late=True))
        self.event_count = 0
        self._worker_count = worker_count
        self._request_count = 0
        self._running: deque[events.AttemptKey] = deque()
        self._send(events.ProfilesReceived((PROFILE,)))
        for number in range(worker_count):
            self._report(number)
        for _ in range(QUEUED + worker_count * CREDITS):
            self._arrive()

    def live(self) -> None:
        """One request ends, the next one starts, another one comes, a worker reports."""
        request_id, token = self._running.popleft()
        self._send(events.AttemptFinished(request_id, token))
        self._send(events.ResultCommitted(request_id, token, True))
        self._arrive()
        self._report(self._request_count % self._worker_count)

    @property
    def queued_count(self) -> int:
        return self.dataplane.state.pools["m"].waiting_count

    def _arrive(self) -> None:
        self._request_count += 1
        number = self._request_count
        request_id, work, deadline = f"r{number}", 30.0 + number % 21, 1e6 + number % 997
        self._send(events.RequestArrived(request_id, f"t{number % TENANTS}", "m", work, deadline))
        self._send(events.AcceptPersisted(request_id))
        self._send(events.RouteResolved(request_id, "m", "d", work))

    def _report(self, number: int) -> None:
        running = self.dataplane.state.workers.get(f"w{number}")
        keys = frozenset(running.in_flight) if running is not None else frozenset()
        self._send(events.WorkerReported(f"w{number}", "m", "d", 1, CREDITS, pinned=True, running=keys))

    def _send(self, event: events.Event) -> None:
        self.event_count += 1
        for effect in self.dataplane.on_event(self.event_count / 1000, event):
            if isinstance(effect, effects.PersistAttempt):
                self._send(events.AttemptPersisted(effect.request_id, effect.fencing_token))
            elif isinstance(effect, effects.Execute):
                self._running.append((effect.request_id, effect.fencing_token))
                self._send(events.AttemptStarted(effect.request_id, effect.fencing_token))


def main() -> int:
    options = parse_options("dispatch_cost", __doc__)
    figures = [
        figure
        for worker_count, limit in ((16, 30.0), (1000, 60.0))
        for figure in figures_of(options, LoadedDataplane(worker_count), worker_count, limit)
    ]
    notes = {"queued": QUEUED, "tenants": TENANTS, "credits": CREDITS, "lives_a_sample": LIVES_A_SAMPLE}
    return publish(options, figures, notes=notes)


def figures_of(options: Options, fleet: LoadedDataplane, worker_count: int, limit_us: float) -> list[Figure]:
    samples = [cost_us(fleet, fleet.live) for _ in range(20 if options.quick else 300)]
    assert fleet.queued_count == QUEUED, f"{fleet.queued_count} requests wait"
    name = f"processor time an event, {worker_count} workers"
    return [measured(name, samples, statistics.median, at_most(limit_us, "us"))]


def cost_us(fleet: LoadedDataplane, live: Callable[[], None]) -> float:
    """Mean of the events of some lives, the making of the events included. Garbage is collected outside."""
    gc.collect()
    gc.disable()
    began, count = time.process_time(), fleet.event_count
    for _ in range(LIVES_A_SAMPLE):
        live()
    took = time.process_time() - began
    gc.enable()
    return took / (fleet.event_count - count) * 1e6


if __name__ == "__main__":
    sys.exit(main())
