"""Simulate cells over one fleet in virtual time.

    simulation = CellSimulation(scenario, ("a", "b"), core_s=0.003, rng=Random(1))
    simulation.send("acme")          # its next request follows when this one has ended
    simulation.run_until(10.0)
    simulation.add("c", map_of("abc", "ab"))   # further cells and lists may come while requests run

Each cell has a live dataplane and the live gate of tenants, each device the live division of a worker's credits. Only
time is simulated: a frontdoor's core takes `core_s` for a request, a message `MESSAGE_S`, and devices their costs.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from random import Random
from typing import Any, cast

from lab.emulation.device import EmulatedDevice
from lab.emulation.jobs import EmulatedJob
from lab.simulator.agenda import Agenda
from lab.simulator.fleet import SimulatedFleet
from lab.simulator.routing import NEVER_S
from lab.simulator.scenario import Scenario
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.image import MOST_CELLS
from pentimento.clients.retries import RetryPolicy
from pentimento.dataplane import Dataplane, effects, events
from pentimento.dataplane.events import AttemptKey
from pentimento.domain.errors import FailedPrecondition
from pentimento.policies.cells import CellMap
from pentimento.stores.ledger import Journal
from services.frontdoor.requests.cells import CellGate
from services.frontdoor.requests.jobs import Jobs
from services.unet_worker.attempts.frontdoors import FairCredits

# One way between two processes of a data centre. A worker's offers to cells take half to one and a half of it, so that
# they reach each cell in another order of workers.
MESSAGE_S = 0.001
RETRY_S = RetryPolicy().first_pause_s
# Between two looks at running requests.
STEP_S = 1.0


class SimulatedCell:
    """Hold a cell: its dataplane, its tenants' gate, the time until which its core is busy, and its running requests
    with their tenants."""

    def __init__(self, name: str, cells: CellMap, scenario: Scenario) -> None:
        self.name = name
        self.dataplane = Dataplane(1, scenario.dataplane)
        self.busy_until_s = 0.0
        self.wakes_s: float | None = None
        self.waiting: deque[events.Event] = deque()
        self.running: dict[str, str] = {}
        self.completed_count = 0
        self.follow(cells)

    def follow(self, cells: CellMap) -> None:
        """Check tenants by these lists from now on, as after a restart; changes state."""
        # Only calls with an idempotency key ask other cells or read the journal.
        self.gate = CellGate(cells, self.name, _no_frontdoor, Jobs(_submit_nothing), cast("Journal", None))


class SharedDevice:
    """Divide the credits of a device between the cells, as a worker does. `tell` receives each changed offer."""

    def __init__(
        self,
        device: EmulatedDevice[AttemptKey],
        agenda: Agenda,
        tell: Callable[[str, "SharedDevice", int, int], None],
    ) -> None:
        self.device = device
        self.held: Counter[str] = Counter()
        self.credits = FairCredits(self.changed, agenda.later)
        self._agenda = agenda
        self._tell = tell
        self._streams: dict[str, AbstractContextManager[None]] = {}
        self._told: dict[str, tuple[int, int]] = {}
        self._reports = False

    def watch(self, cell: str) -> None:
        """Offer credits to the cell from now on; changes state."""
        self._streams[cell] = self.credits.watching(cell)
        self._streams[cell].__enter__()
        self.changed()

    def leave(self, cell: str) -> None:
        """Offer the cell no more; changes state."""
        self._streams.pop(cell).__exit__(None, None, None)
        self._told.pop(cell, None)

    def admit(self, cell: str, work: float) -> bool:
        """Return whether the cell may start another attempt, which is then counted; changes state."""
        allowed = self.credits.allowed(cell, self.device.credit_count, self.held) + self.device.reserve_count
        if self.held[cell] >= allowed:
            return False
        self.credits.admit(cell, work)
        self.held[cell] += 1
        self.changed()
        return True

    def release(self, cell: str) -> None:
        """Count an attempt no longer; changes state."""
        self.held[cell] -= 1
        if not self.held[cell]:
            del self.held[cell]
        self.changed()

    def changed(self, _: object = None) -> None:
        """Report a moment later, once for all changes until then."""
        if not self._reports:
            self._reports = True
            self._agenda.at(self._agenda.now + MESSAGE_S, self._report)

    def _report(self, _: None) -> None:
        self._reports = False
        for cell in self._streams:
            offered = self.credits.offered(cell, self.device.credit_count, self.held)
            offer = (offered, self.credits.reserve(cell, self.device.reserve_count))
            if self._told.get(cell) != offer:
                self._told[cell] = offer
                self._tell(cell, self, *offer)


class CellSimulation:
    """Run cells over the scenario's devices, all with its default model. `edge`: the lists that clients' calls go by;
    `sends_again`: whether a tenant's next request follows; `led_count`: calls that a cell led to another one;
    `accepted_by`: the last cell of each tenant."""

    def __init__(self, scenario: Scenario, names: Sequence[str], core_s: float, rng: Random) -> None:
        self._scenario = scenario
        self._core_s = core_s
        self._random = rng
        self._agenda = Agenda()
        self._fleet = SimulatedFleet(scenario, self._agenda, self, rng)
        self._model = scenario.default_model
        self._work = float(scenario.model(self._model).costs.step_count)
        self._devices = {name: SharedDevice(one, self._agenda, self._tell) for name, one in self._fleet.devices.items()}
        self._unsettled: dict[str, SimulatedCell] = {}
        # The cell of each attempt on a device, and the attempts that have yielded their place.
        self._attempts: dict[AttemptKey, SimulatedCell] = {}
        self._yielded: set[AttemptKey] = set()
        self.cells: dict[str, SimulatedCell] = {}
        self.edge = map_of(names)
        self.sends_again = True
        self.sent_count = self.completed_count = self.led_count = self.events_count = self._arrived_count = 0
        self.accepted_by: dict[str, str] = {}
        self._performers: Mapping[type, Callable[[SimulatedCell, Any], None]] = {
            effects.PersistAccepted: self._accept,
            effects.ResolveRoute: self._resolve,
            effects.PersistAttempt: self._persist_attempt,
            effects.Execute: self._execute,
            effects.StopAttempt: self._stop,
            effects.CommitResult: self._commit,
            effects.PersistEnd: self._persist_end,
            effects.Deliver: self._deliver,
            effects.DeliverEnd: self._end_without_image,
            effects.Reject: self._end_without_image,
        }
        for name in names:
            self.add(name, self.edge)

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._agenda.now

    def add(self, name: str, cells: CellMap) -> None:
        """Start a cell; changes state."""
        cell = self.cells[name] = SimulatedCell(name, cells, self._scenario)
        self._submit(cell, events.ProfilesReceived(self._fleet.speed_profiles()))
        for device in self._devices.values():
            device.watch(name)

    def remove(self, name: str) -> None:
        """End a cell without running requests; changes state."""
        if self.cells[name].running:
            raise RuntimeError(f"the cell {name} has {len(self.cells[name].running)} running requests")
        for device in self._devices.values():
            device.leave(name)
        del self.cells[name]

    def send(self, tenant: str) -> None:
        """Send a tenant's request to the edge, and follow cells that lead to another one, as clients do; changes
        state."""
        self.sent_count += 1
        self._call(tenant)

    def _call(self, tenant: str) -> None:
        name = self.edge.home(tenant)
        for _ in range(MOST_CELLS):
            other = self._led_to(name, tenant)
            if other is None:
                return self._arrive(self.cells[name], tenant)
            self.led_count += 1
            name = other
        # The cells' lists differ for now.
        return self._agenda.at(self.now + RETRY_S, self._call, tenant)

    def _arrive(self, cell: SimulatedCell, tenant: str) -> None:
        self._arrived_count += 1
        request_id, name = f"r{self._arrived_count}", cell.name
        self.accepted_by[tenant] = name
        cell.running[request_id] = tenant
        self._submit(cell, events.RequestArrived(request_id, tenant, self._model, self._work, NEVER_S))

    def run_until(self, end_s: float) -> None:
        """Play everything that is due until then; changes state."""
        self._settle()
        while (due_s := self._agenda.next_time()) is not None and due_s <= end_s:
            action, argument = self._agenda.pop()
            action(argument)
            self._settle()
        self._agenda.now = max(self._agenda.now, end_s)

    def run_until_ended(self) -> None:
        """Play until every request that runs now has ended; changes state."""
        running = [(cell, request_id) for cell in self.cells.values() for request_id in cell.running]
        while running := [(cell, request_id) for cell, request_id in running if request_id in cell.running]:
            self.run_until(self.now + STEP_S)

    def _led_to(self, name: str, tenant: str) -> str | None:
        try:
            self.cells[name].gate.check_home(tenant)
        except FailedPrecondition as error:
            return error.metadata["cell"]
        return None

    def _submit(self, cell: SimulatedCell, event: events.Event) -> None:
        cell.waiting.append(event)
        self._unsettled[cell.name] = cell

    def _submit_later(self, due: tuple[SimulatedCell, events.Event]) -> None:
        self._submit(*due)

    def _after(self, delay_s: float, cell: SimulatedCell, event: events.Event) -> None:
        self._agenda.at(self.now + delay_s, self._submit_later, (cell, event))

    def _settle(self) -> None:
        while self._unsettled:
            _, cell = self._unsettled.popitem()
            while cell.waiting:
                self.events_count += 1
                for effect in cell.dataplane.on_event(self.now, cell.waiting.popleft()):
                    performer = self._performers.get(type(effect))
                    if performer is not None:
                        performer(cell, effect)
            due_s = cell.dataplane.next_wakeup()
            if due_s is not None and (cell.wakes_s is None or due_s < cell.wakes_s):
                cell.wakes_s = due_s
                self._agenda.at(due_s, self._wake, cell)

    def _wake(self, cell: SimulatedCell) -> None:
        if cell.wakes_s is not None and cell.wakes_s <= self.now:
            cell.wakes_s = None
            self._submit(cell, events.TimePassed())

    def _tell(self, name: str, shared: SharedDevice, credits: int, reserve: int) -> None:
        device, digest = shared.device, self._fleet.digest_of(self._model)
        given = (device.worker_id, self._model, digest, device.generation, credits)
        reported = events.WorkerReported(*given, pinned=True, reserve_count=reserve)
        self._after(MESSAGE_S * (0.5 + self._random.random()), self.cells[name], reported)

    # Effects.

    def _accept(self, cell: SimulatedCell, effect: effects.PersistAccepted) -> None:
        cell.busy_until_s = max(cell.busy_until_s, self.now) + self._core_s
        self._after(cell.busy_until_s - self.now, cell, events.AcceptPersisted(effect.request_id))

    def _resolve(self, cell: SimulatedCell, effect: effects.ResolveRoute) -> None:
        digest = self._fleet.digest_of(self._model)
        self._submit(cell, events.RouteResolved(effect.request_id, self._model, digest, self._work))

    def _persist_attempt(self, cell: SimulatedCell, effect: effects.PersistAttempt) -> None:
        self._submit(cell, events.AttemptPersisted(effect.request_id, effect.fencing_token))

    def _execute(self, cell: SimulatedCell, effect: effects.Execute) -> None:
        self._agenda.at(self.now + MESSAGE_S, self._start, (cell, effect))

    def _start(self, due: tuple[SimulatedCell, effects.Execute]) -> None:
        cell, effect = due
        shared, attempt = self._devices[effect.worker_id], (effect.request_id, effect.fencing_token)
        if shared.admit(cell.name, self._work):
            self._attempts[attempt] = cell
            shared.device.start(attempt, int(self._work), effect.deadline)
        else:
            self._after(MESSAGE_S, cell, events.AttemptFailed(*attempt, events.FailureKind.NO_CREDIT))

    def _stop(self, cell: SimulatedCell, effect: effects.StopAttempt) -> None:
        self._devices[effect.worker_id].device.stop((effect.request_id, effect.fencing_token))

    def _commit(self, cell: SimulatedCell, effect: effects.CommitResult) -> None:
        self._submit(cell, events.ResultCommitted(effect.request_id, effect.fencing_token, won=True))

    def _persist_end(self, cell: SimulatedCell, effect: effects.PersistEnd) -> None:
        self._submit(cell, events.EndPersisted(effect.request_id, won=True))

    def _deliver(self, cell: SimulatedCell, effect: effects.Deliver) -> None:
        cell.completed_count += 1
        self.completed_count += 1
        self._end(cell, effect.request_id)

    def _end_without_image(self, cell: SimulatedCell, effect: effects.DeliverEnd | effects.Reject) -> None:
        self._end(cell, effect.request_id)

    def _end(self, cell: SimulatedCell, request_id: str) -> None:
        tenant = cell.running.pop(request_id)
        if self.sends_again:
            self.send(tenant)

    # Events of devices.

    def device_reports(self, device: EmulatedDevice[AttemptKey]) -> None:
        self._devices[device.worker_id].changed()

    def job_began(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        self._after(MESSAGE_S, self._attempts[job.owner], events.AttemptStarted(*job.owner))

    def job_yielded(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        self._yielded.add(job.owner)
        cell = self._attempts[job.owner]
        self._devices[device.worker_id].release(cell.name)
        self._after(MESSAGE_S, cell, events.AttemptYielded(*job.owner))

    def job_finished(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        self._leave(device, job, events.AttemptFinished(*job.owner))

    def job_stopped(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        self._leave(device, job, events.AttemptFailed(*job.owner, events.FailureKind.STOPPED))

    def job_dropped(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        self._leave(device, job, events.AttemptFailed(*job.owner, events.FailureKind.DEADLINE))

    def batch_stepped(self, batch: Sequence[EmulatedJob[AttemptKey]], seconds: float, late_s: float) -> None:
        """Devices of this simulation do not report steps."""

    def _leave(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey], event: events.Event) -> None:
        cell = self._attempts.pop(job.owner)
        if job.owner in self._yielded:
            self._yielded.remove(job.owner)
        else:
            self._devices[device.worker_id].release(cell.name)
        self._after(MESSAGE_S, cell, event)


def map_of(*lists: Sequence[str]) -> CellMap:
    """Return the map of lists of cells, newest first; a cell's address is its name."""
    return CellMap({name: name for names in lists for name in names}, tuple(map(tuple, lists)))


def _no_frontdoor(address: str) -> FrontdoorClient:
    raise RuntimeError(f"a call without a key asks no other cell, {address}")


def _submit_nothing(event: events.Event) -> None:
    raise RuntimeError(f"the gate of a simulated cell has no jobs, got {event}")
