"""Run a frontdoor process from its start or takeover to its last answer."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pentimento.dataplane.events import DrainRequested, PlanReceived, ProfilesReceived, SpeedProfile, TookOver
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Plan, ReplicaKind
from pentimento.profiles.costs import BatchProfile, ModelProfile, read_costs
from pentimento.rpc import RpcServer
from pentimento.service.lease import LedgerLease
from pentimento.service.plan_follower import PlanFollower
from pentimento.service.process import ServiceProcess, end
from services.frontdoor.interpreter import EffectsRecorder, Interpreter
from services.frontdoor.journal.recovery import recover
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.image_api import ImageApi
from services.frontdoor.requests.limits import Quotas
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.status import publish_levels_forever
from services.frontdoor.tenants.erasures import Erasures
from services.frontdoor.webhooks.delivering import Webhooks

logger = logging.getLogger(__name__)

_LOOK_S = 0.25


@dataclass(kw_only=True)
class Frontdoor(ServiceProcess):
    """Run a frontdoor as `wiring` constructs it. `admin` is None if tenants are not administered here.

    A frontdoor with epoch 0 is a standby until `prepare`. Its background tasks run through the drain, during which
    requests still end.
    """

    settings: FrontdoorSettings
    parts: FrontdoorParts
    interpreter: Interpreter
    api: ImageApi
    lease: LedgerLease
    keeper: ObjectKeeper
    quotas: Quotas
    webhooks: Webhooks
    erasures: Erasures
    admin: RpcServer | None
    plans: PlanFollower
    recorder: EffectsRecorder | None
    _superseded: bool = field(default=False, init=False)

    async def warm(self) -> None:
        """Prepare, join the fleet, and wait a while for a worker."""
        await super().warm()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.worker_wait_s):
                await self.parts.catalogue.wait_for_any()

    async def prepare(self) -> None:
        """Recover the requests of an earlier frontdoor and follow the last plan. A standby first waits to take over."""
        parts = self.parts
        if not parts.identity.epoch:
            parts.identity.epoch = await self.lease.wait_and_take_over()
            parts.submit(TookOver(parts.identity.epoch))
        await asyncio.wrap_future(parts.journal.time.resume(self.lease.silence_s))
        # Recovery may take longer than a lease: unless it is held, a standby takes over in the middle of it, then the
        # next standby from that one.
        hold = partial(self.lease.hold, lambda: parts.identity.epoch, self._on_superseded, parts.acceptance.hear_beat)
        self.run_until_closed(hold, "lease")
        parts.identity.journal_id = await asyncio.wrap_future(parts.journal.identity())
        await self.keeper.claim(parts.identity.journal_id, adopts=self.settings.adopt_objects)
        if profiles := read_speeds(self.settings.profiles):
            parts.submit(profiles)
        if (plan := await self.plans.load()) is not None:
            parts.submit(PlanReceived(plan))
        await parts.tenants.refresh()
        await self.keeper.recover()
        await parts.retention.recover()
        await self.quotas.look_at_disks()
        parts.acceptance.see_disk(self.quotas.full_disk)
        default_s = self.settings.requests.default_deadline_s
        in_force = parts.dataplane.state.plan
        parts.submit(await recover(parts.journal, parts.jobs, parts.inputs, parts.clock, default_s, in_force))
        self._follow_workers()
        await self._serve_admin()
        self._start_background()

    async def finish(self) -> None:
        """Wait until every accepted request has ended; unfinished ones stay in the journal for the next start."""
        try:
            self.parts.shadows.close()
            self.parts.submit(DrainRequested())
            if self._superseded:
                return
            if self.registration is not None:
                self.registration.report_soon()
            await self.parts.drained.wait()
            await self.parts.jobs.finish_tasks()
        finally:
            self.stop_listening_to_clients()

    def stop_listening_to_clients(self) -> None:
        """Stop cancelling requests when their streams break: from here on streams break because the process stops."""
        self.api.stopping = True

    async def close(self) -> None:
        """Stop everything but the journal, which the caller opened and closes."""
        if self.registration is not None:
            await self.registration.close()
        if self.admin is not None:
            await self.admin.stop()
        await end(self._until_closed)
        with suppress(PentimentoError):
            await self.parts.usage.flush()
        self.interpreter.close()
        if self.recorder is not None:
            self.recorder.close()
        await self.parts.jobs.cancel_tasks()
        await self.parts.links.close()
        self.keeper.close()
        self.parts.results.close()

    def _start_background(self) -> None:
        parts = self.parts
        self.run_until_closed(partial(publish_levels_forever, parts.dataplane, parts.links), "levels")
        self.run_until_closed(self.keeper.move_forever, "objects")
        self.run_until_closed(parts.retention.run_forever, "retention")
        self.run_until_closed(partial(self.quotas.watch_disks_forever, parts.acceptance.see_disk), "disks")
        self.run_until_closed(self._tell_whether_accepting, "acceptance")
        self.run_until_closed(self.webhooks.run_forever, "webhooks")
        self.run_until_closed(parts.shadows.run_forever, "shadows")
        self.run_until_closed(parts.tenants.follow_forever, "tenants")
        self.run_until_closed(parts.usage.run_forever, "usage")
        self.run_until_closed(self.erasures.run_forever, "erasures")
        self.run_until_closed(partial(self.plans.run, self._on_plan), "plan")

    async def _tell_whether_accepting(self) -> None:
        """Report NOT_SERVING, with the reason, while every new request would be rejected. Running requests continue,
        and calls are answered."""
        told = ""
        while True:
            blocked = self.parts.acceptance.blocked
            if blocked != told:
                self.server.hold_back(blocked)
                logger.warning("new requests are %s", f"rejected: {blocked}" if blocked else "accepted again")
            told = blocked
            await asyncio.sleep(_LOOK_S)

    async def _serve_admin(self) -> None:
        if self.admin is not None:
            await self.admin.start()
            self.admin.set_serving()

    def _on_plan(self, plan: Plan) -> None:
        self.parts.submit(PlanReceived(plan))
        self._follow_workers()

    def _on_superseded(self) -> None:
        """Stop: another active frontdoor fences off this one's work, and clients find their requests there."""
        self._superseded = True
        self.interpreter.close()
        self.api.hand_over()
        signal.raise_signal(signal.SIGTERM)

    def _follow_workers(self) -> None:
        plan = self.plans.plan
        if plan is not None:
            self.parts.adapters.follow(plan)
            models = {pool.model for pool in plan.pools} | {assigned.model for assigned in plan.assignments}
            self.parts.catalogue.follow(plan.registered, models)
        endpoints = plan.endpoints if plan is not None else ()
        kinds = {ReplicaKind.EMBEDDER: self.parts.embedder, ReplicaKind.IMAGE_EMBEDDER: self.parts.image_embedder}
        if self.parts.image_embedder is self.parts.embedder:
            del kinds[ReplicaKind.IMAGE_EMBEDDER]
        for kind, embedders in kinds.items():
            if embedders is not None:
                embedders.follow(tuple(endpoint.address for endpoint in endpoints if endpoint.kind is kind))
        self.parts.discriminators.follow(endpoints, plan.components if plan is not None else ())
        planned = {assignment.address: False for assignment in plan.assignments} if plan is not None else {}
        self.parts.links.follow(planned | dict.fromkeys(self.settings.worker_addresses, True))


def read_speeds(paths: Sequence[Path]) -> ProfilesReceived | None:
    """Return the speeds measured in profile files, or in directories; None without any.

    Raises InvalidArgument naming file and field.
    """
    found = read_costs(paths)
    return ProfilesReceived(tuple(map(speed_profile, found))) if found else None


def speed_profile(profile: ModelProfile) -> SpeedProfile:
    """Return the speed at the largest size profiled with guidance, or without if there is none.

    The dataplane measures work in pixel steps, so other sizes scale with this one.
    """
    largest = max(profile.batches, key=lambda batch: (batch.guided, batch.width_px * batch.height_px))
    batches = [batch for batch in profile.batches if _shape(batch) == _shape(largest)]
    pixels = largest.width_px * largest.height_px
    seconds = {batch.batch_size: batch.step.mean_s / pixels for batch in batches}
    fixed = [
        size.prepare.mean_s + size.decode.mean_s + size.encode.mean_s
        for size in profile.sizes
        if (size.width_px, size.height_px) == (largest.width_px, largest.height_px)
    ]
    return SpeedProfile(profile.model, tuple(sorted(seconds.items())), fixed[0] if fixed else 0.0)


def _shape(batch: BatchProfile) -> tuple[int, int, bool]:
    return (batch.width_px, batch.height_px, batch.guided)
