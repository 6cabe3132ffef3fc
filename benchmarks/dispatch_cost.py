"""Measure the dataplane's processor time per event at 16 and at 1,000 workers, with 10,000 requests queued.

Each sample runs 100 requests from arrival to commit. One request arrives and one worker reports for each that finishes,
so the queue length is constant. Everything is pure Python in this process: no journal, no sockets, no event loop.

    python -m benchmarks.dispatch_cost --quick
"""

import gc
import statistics
import sys
import time
from collections import deque

from lab.runs.measure import Figure, Options, at_most, measured, parse_options, publish
from pentimento.dataplane import Dataplane, DataplaneSettings, effects, events

QUEUED_COUNT = 10_000
TENANT_COUNT = 50
CREDIT_COUNT = 4
REQUESTS_PER_SAMPLE = 100
# Workers and the target: median microseconds per event.
TARGETS_US = {16: 30.0, 1000: 60.0}
PROFILE = events.SpeedProfile("m", ((1, 0.02), (2, 0.026), (4, 0.04)), fixed_s=0.05)


class LoadedDataplane:
    """A dataplane with every credit in use and a full queue. Its clock advances by 1 ms per event."""

    def __init__(self, worker_count: int) -> None:
        self.dataplane = Dataplane(1, DataplaneSettings(queue_limit=10 * QUEUED_COUNT, drop_late=True))
        self.event_count = 0
        self._worker_count = worker_count
        self._request_count = 0
        self._running: deque[events.AttemptKey] = deque()
        self._send(events.ProfilesReceived((PROFILE,)))
        for number in range(worker_count):
            self._report(number)
        for _ in range(QUEUED_COUNT + worker_count * CREDIT_COUNT):
            self._arrive()

    def replace_oldest(self) -> None:
        """Finish the oldest attempt, which starts the next one; add a request to the queue; report one worker."""
        request_id, token = self._running.popleft()
        self._send(events.AttemptFinished(request_id, token))
        self._send(events.ResultCommitted(request_id, token, True))
        self._arrive()
        self._report(self._request_count % self._worker_count)

    def _arrive(self) -> None:
        self._request_count += 1
        number = self._request_count
        request_id, work, deadline = f"r{number}", 30.0 + number % 21, 1e6 + number % 997
        self._send(events.RequestArrived(request_id, f"t{number % TENANT_COUNT}", "m", work, deadline))
        self._send(events.AcceptPersisted(request_id))
        self._send(events.RouteResolved(request_id, "m", "d", work))

    def _report(self, number: int) -> None:
        worker = self.dataplane.state.workers.get(f"w{number}")
        running = frozenset(worker.in_flight) if worker is not None else frozenset()
        self._send(events.WorkerReported(f"w{number}", "m", "d", 1, CREDIT_COUNT, pinned=True, running=running))

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
    figures = [cost_figure(options, worker_count, target_us) for worker_count, target_us in TARGETS_US.items()]
    notes = {"queued": QUEUED_COUNT, "tenants": TENANT_COUNT, "credits": CREDIT_COUNT}
    return publish(options, figures, notes={**notes, "requests_per_sample": REQUESTS_PER_SAMPLE})


def cost_figure(options: Options, worker_count: int, target_us: float) -> Figure:
    fleet = LoadedDataplane(worker_count)
    samples = [sample_us(fleet) for _ in range(20 if options.quick else 300)]
    queued_count = fleet.dataplane.state.pools["m"].waiting_count
    assert queued_count == QUEUED_COUNT, f"the queue has {queued_count} requests, not {QUEUED_COUNT}"
    name = f"processor time an event, {worker_count} workers"
    return measured(name, samples, statistics.median, at_most(target_us, "us"))


def sample_us(fleet: LoadedDataplane) -> float:
    """Return the mean processor time per event in microseconds, without garbage collection."""
    gc.collect()
    gc.disable()
    started_s, started_count = time.process_time(), fleet.event_count
    for _ in range(REQUESTS_PER_SAMPLE):
        fleet.replace_oldest()
    elapsed_s = time.process_time() - started_s
    gc.enable()
    return elapsed_s / (fleet.event_count - started_count) * 1e6


if __name__ == "__main__":
    sys.exit(main())
