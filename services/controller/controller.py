"""Control the fleet: accept replicas and their reports, plan from them, and send the plans to watchers."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pentimento.domain.adapters import Adapter
from pentimento.domain.clock import Clock
from pentimento.domain.components import FoundComponent
from pentimento.domain.errors import InvalidArgument, PentimentoError, Unavailable
from pentimento.domain.fleet import Fleet, Plan, Replica, ReplicaKind, ReplicaLease, ReplicaReport
from pentimento.domain.generation import ObjectReference, PlanVersion
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.costs import reported_profiles, with_registered
from pentimento.policies.plan.demand import DemandWindow
from pentimento.policies.plan.inputs import ModelDemand, PlanInput, ReplicaView
from services.controller.checks import check_digests, check_instance, check_replica, check_report
from services.controller.leadership import LeaderEpoch
from services.controller.metrics import LIVE_REPLICAS, PAUSES, REFUSED_REPORTS
from services.controller.plan_feed import PlanFeed
from services.controller.planner import Planner
from services.controller.registry import Registry
from services.controller.repository import ModelRepository
from services.controller.scaler import Scaler

logger = logging.getLogger(__name__)

REPORTS_A_LEASE = 3
# A planning period between two reports would see no demand.
REPORTS_A_LOOK = 2
# After two leases every replica that survived a restart of the controller has registered again.
LEASES_TO_SETTLE = 2
# The policy begins once no replica has joined for a lease, and at the latest at this time after the start: a replica
# that dies as it starts may register again for ever.
LATEST_BEGIN_S = 60.0
# Least time between plans: a whole fleet that registers together causes a few plans, not hundreds.
MIN_PLAN_GAP_S = 0.02
# A loop that wakes later than this was stopped, not busy.
PAUSE_S = 1.0
# Another controller may lead after this time, or this one.
STANDBY_RETRY_MS = 500
# Peers that a replica learns for one component.
MAX_HOLDERS = 4


class Controller:
    """Plan the fleet on one event loop. `run` plans; the other methods answer RPCs and raise domain errors. The policy
    decides by the demand of each `plan_interval_s`; one that follows the queues, after every second report. With
    `leads` False a controller rejects all RPCs until `lead`. `keep` receives every new plan. `repository` has the
    costs of models that no worker has measured, and digests by name. `scaler` follows every round and report."""

    def __init__(
        self,
        registry: Registry,
        planner: Planner,
        epoch: LeaderEpoch,
        plan_interval_s: float,
        clock: Clock,
        *,
        leads: bool = True,
        keep: Callable[[Plan], None] | None = None,
        repository: ModelRepository | None = None,
        slo_s: float = 0.0,
        scaler: Scaler | None = None,
    ) -> None:
        self._slo_s = slo_s
        self._scaler = scaler
        self._repository = repository or ModelRepository()
        self._leads = leads
        self._keep = keep
        self._registry = registry
        self._planner = planner
        self._feed = PlanFeed()
        self._epoch = epoch
        self._report_interval_s = registry.lease_s / REPORTS_A_LEASE
        self._settle_s = registry.lease_s * LEASES_TO_SETTLE
        self._plan_interval_s = max(plan_interval_s, REPORTS_A_LOOK * self._report_interval_s)
        self._clock = clock
        self._started_s = self._joined_s = self._look_s = clock.monotonic()
        self._window = DemandWindow()
        self._demand: tuple[ModelDemand, ...] = ()
        self._changed = asyncio.Event()

    def lead(self, epoch: int, left: Plan | None) -> None:
        """Lead from now on, under that epoch. Changes state. `left`, the last plan of the leader before, stays in force
        until the fleet is known."""
        self._epoch.claim(epoch)
        self._planner.rise_to(epoch)
        if left is not None:
            self._feed.restore(left)
        self._started_s = self._joined_s = self._look_s = self._clock.monotonic()
        self._leads = True

    def name_uploaded(self, adapters: tuple[Adapter, ...]) -> None:
        """Set the LoRAs of the object store that all later plans name. Changes state."""
        self._planner.uploaded = adapters
        self._changed.set()

    def register(self, replica: Replica) -> ReplicaLease:
        """Register a replica, and return its lease. Changes state."""
        self.check_leading()
        with _counting_refusals():
            check_replica(replica)
            self._registry.register(replica, self._clock.monotonic())
        self._joined_s = self._clock.monotonic()
        logger.info("registered", extra={"replica": replica.instance_id, "generation": replica.generation})
        self._changed.set()
        lease_ms, interval_ms = round(self._registry.lease_s * 1000), round(self._report_interval_s * 1000)
        return ReplicaLease(lease_ms, interval_ms, self._epoch.value)

    def report(self, report: ReplicaReport) -> int:
        """Apply a report, and return the leader's epoch. Changes state; a rejected report changes nothing."""
        self.check_leading()
        with _counting_refusals():
            check_instance(report.instance_id, report.generation)
            # An unknown replica counts from its registration on: its earlier counts may be anything.
            self._registry.require(report.instance_id, report.generation)
            check_report(report)
            followed = report.plan_version
            if followed is not None and not self._epoch.believable(followed.leader_epoch):
                raise InvalidArgument.of("plan.version.leader_epoch", "must be an epoch that a leader can have had")
            received = self._registry.report(report, self._clock.monotonic())
        self._window.add(report, received.covered_s)
        if self._scaler is not None and report.demand:
            self._scaler.note_waiting(self._registry.live(self._clock.monotonic()))
        if received.changed:
            self._changed.set()
        self._overtake(report.plan_version)
        return self._epoch.value

    def deregister(self, instance_id: str, generation: int) -> None:
        """Remove a replica from the registry. Changes state."""
        self.check_leading()
        check_instance(instance_id, generation)
        self._registry.deregister(instance_id, generation)
        logger.info("deregistered", extra={"replica": instance_id, "generation": generation})
        self._changed.set()

    def watch(self, have: PlanVersion | None) -> AsyncGenerator[Plan, None]:
        """Yield plans as they come into force; see PlanFeed."""
        self.check_leading()
        self._overtake(have)
        return self._feed.watch(have)

    def fleet(self) -> Fleet:
        self.check_leading()
        plan = self._feed.in_force or Plan(PlanVersion(self._epoch.value, 0))
        statuses = self._registry.statuses(self._clock.monotonic())
        decision = self._planner.decision
        told = (self._planner.unplanned, self._slo_s, decision.steered, decision.deferrals)
        return Fleet(statuses, plan, self._epoch.value, *told)

    def find_components(self, instance_id: str, digests: Sequence[str], model: str) -> list[FoundComponent]:
        """Return the components with these digests that replicas but `instance_id` hold; without digests the uploaded
        LoRAs that requests use most with a model. Raises InvalidArgument for a wrong digest."""
        self.check_leading()
        check_digests(digests)
        now_s = self._clock.monotonic()
        wanted = dict[str, ObjectReference | None].fromkeys(digests)
        if not digests:
            wanted = {one.digest: one.object for one in self._planner.most_used(model)}
        holders = {digest: self._registry.holders(digest, now_s, instance_id) for digest in wanted}
        return [
            FoundComponent(digest, tuple(random.sample(there, min(len(there), MAX_HOLDERS))), wanted[digest])
            for digest, there in holders.items()
            if there or not digests
        ]

    async def run(self) -> None:
        """Plan now, then when the fleet changes, a lease ends or a planning period is over, and every PAUSE_S: only a
        step that is late reveals a pause of this process."""
        due_s = self._clock.monotonic()
        while True:
            now_s = self._clock.monotonic()
            self.forgive_pause(now_s, due_s)
            self._changed.clear()
            try:
                await self.step(now_s)
            except Exception:  # if this loop ended, plans would never change again
                logger.exception("planning failed; the current plan stays")
            await asyncio.sleep(MIN_PLAN_GAP_S)
            due_s = self._next_step_s(now_s)
            # Not asyncio.wait_for: up to Python 3.11 it swallows a cancel that arrives together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_s - self._clock.monotonic())):
                    await self._changed.wait()

    async def step(self, now_s: float) -> None:
        """Run one planning round at `now_s` (monotonic seconds). Changes state."""
        self._registry.forget_silent(now_s)
        replicas = self._registry.live(now_s)
        if plan := await self._replan(replicas, now_s):
            self._feed.publish(plan)
            if self._keep is not None:
                self._keep(plan)
            logger.info("new plan", extra={"sequence": plan.version.sequence, "workers": len(plan.assignments)})
        if now_s >= self._started_s + self._settle_s:
            self._feed.settle()
        kinds = Counter(view.replica.kind for view in replicas)
        for kind in ReplicaKind:
            LIVE_REPLICAS.labels(kind.value).set(kinds[kind])

    def forgive_pause(self, now_s: float, due_s: float) -> None:
        """Extend leases by a pause of this process, which could receive no report. Changes state."""
        if now_s - due_s > PAUSE_S:
            PAUSES.inc()
            logger.warning("the controller was paused", extra={"seconds": round(now_s - due_s, 1)})
            self._registry.forgive(now_s - due_s, now_s)

    def close(self) -> None:
        """End the watchers' streams. Changes state."""
        self._feed.close()
        if self._scaler is not None:
            self._scaler.close()

    async def _replan(self, replicas: tuple[ReplicaView, ...], now_s: float) -> Plan | None:
        """Plan by new demand when a period is over, else by the last round's demand."""
        is_due = now_s >= self._look_due_s()
        if is_due:
            self._planner.begin()
            self._look_s, self._demand = now_s, self._window.take(replicas)
        reported = reported_profiles(replicas)
        profiles = with_registered(reported, self._repository.costs)
        self._planner.registered = self._repository.digests
        context = PlanInput(self._look_s, replicas, self._demand, profiles)
        plan = await (self._planner.look(context) if is_due else self._planner.look_again(context))
        if self._scaler is not None and self._planner.begun:
            self._scaler.look(context, self._known_models(context), self._planner.assigned)
        return plan

    def _known_models(self, context: PlanInput) -> frozenset[str]:
        measured = (profile.model for profile in context.profiles)
        return context.able_models().union(measured, self._repository.digests, self._planner.scaled)

    def _look_due_s(self) -> float:
        """Return the time of the next round, in monotonic seconds: the first one waits until the fleet seems whole."""
        if self._planner.begun:
            soon_s = REPORTS_A_LOOK * self._report_interval_s
            return self._look_s + (soon_s if self._planner.follows_queues else self._plan_interval_s)
        calm_s = min(self._joined_s + self._registry.lease_s, self._started_s + LATEST_BEGIN_S)
        return max(self._started_s + self._settle_s, calm_s)

    def _next_step_s(self, now_s: float) -> float:
        settled_s = self._started_s + self._settle_s
        ends = [
            now_s + PAUSE_S,
            self._look_due_s(),
            self._registry.next_expiry_s(now_s),
            settled_s if now_s < settled_s else None,
        ]
        return min(end for end in ends if end is not None)

    def check_leading(self) -> None:
        """Raise Unavailable STANDBY while another controller leads."""
        if not self._leads:
            raise Unavailable(Reason.STANDBY, "this controller is a standby", retry_after_ms=STANDBY_RETRY_MS)

    def _overtake(self, seen: PlanVersion | None) -> None:
        """Rise above the epoch of a newer plan that a replica follows (this clock was set back): else it would ignore
        this controller's plans."""
        if seen is not None and self._epoch.overtake(seen.leader_epoch):
            logger.warning("rising above a newer epoch", extra={"leader_epoch": self._epoch.value})
            self._planner.rise_to(self._epoch.value)
            self._changed.set()


@contextmanager
def _counting_refusals() -> Iterator[None]:
    """Count the errors that leave the block, by reason."""
    try:
        yield
    except PentimentoError as error:
        REFUSED_REPORTS.labels(error.reason).inc()
        raise
