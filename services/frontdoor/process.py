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
from pentimento.domain.fleet import Plan
from pentimento.profiles.costs import BatchProfile, ModelProfile, read_costs
from pentimento.rpc import RpcServer
from pentimento.service.fleet_member import PlanFollower
from pentimento.service.lease import LedgerLease
from pentimento.service.process import ServiceProcess, end
from pentimento.stores.ledger import Journal
from services.frontdoor.identity import Identity
from services.frontdoor.interpreter import EffectsRecorder, Interpreter
from services.frontdoor.journal.recovery import recover
from services.frontdoor.journal.retention import Retention
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.objects.results import Results
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.requests.image_api import ImageApi
from services.frontdoor.requests.jobs import Jobs
from services.frontdoor.requests.limits import Acceptance, Quotas
from services.frontdoor.routing.abilities import DiscriminatorAbilities
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.status import publish_levels_forever
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.erasures import Erasures
from services.frontdoor.tenants.usage import UsageMeter
from services.frontdoor.webhooks.delivering import Webhooks
from services.frontdoor.workers.fleet import WatchedFleet

logger = logging.getLogger(__name__)

_LOOK_S = 0.25


@dataclass(kw_only=True)
class Frontdoor(ServiceProcess):
    """Run a frontdoor as `wiring` constructs it. `admin` is None if tenants are not administered here.

    A frontdoor with epoch 0 is a standby until `prepare`. Its background tasks run through the drain, during which
    requests still end.
    """

    settings: FrontdoorSettings
    interpreter: Interpreter
    identity: Identity
    journal: Journal
    lease: LedgerLease
    jobs: Jobs
    api: ImageApi
    quotas: Quotas
    acceptance: Acceptance
    tenants: TenantDirectory
    usage: UsageMeter
    keeper: ObjectKeeper
    results: Results
    inputs: Inputs
    retention: Retention
    shadows: Shadows
    webhooks: Webhooks
    erasures: Erasures
    fleet: WatchedFleet
    abilities: DiscriminatorAbilities
    plans: PlanFollower
    drained: asyncio.Event
    admin: RpcServer | None
    recorder: EffectsRecorder | None
    _superseded: bool = field(default=False, init=False)

    async def warm(self) -> None:
        """Prepare, join the fleet, and wait a while for a worker."""
        await super().warm()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.worker_wait_s):
                await self.fleet.catalogue.wait_for_any()

    async def prepare(self) -> None:
        """Recover the requests of an earlier frontdoor and follow the last plan. A standby first waits to take over."""
        identity, journal, submit = self.identity, self.journal, self.interpreter.submit
        if not identity.epoch:
            identity.epoch = await self.lease.wait_and_take_over()
            submit(TookOver(identity.epoch))
        await asyncio.wrap_future(journal.time.resume(self.lease.silence_s))
        # Recovery may take longer than a lease: unless it is held, a standby takes over in the middle of it, then the
        # next standby from that one.
        hold = partial(self.lease.hold, lambda: identity.epoch, self._on_superseded, self.acceptance.hear_beat)
        self.run_until_closed(hold, "lease")
        identity.journal_id = await asyncio.wrap_future(journal.identity())
        await self.keeper.claim(identity.journal_id, adopts=self.settings.adopt_objects)
        if profiles := read_speeds(self.settings.profiles):
            submit(profiles)
        if (plan := await self.plans.load()) is not None:
            submit(PlanReceived(plan))
        await self.tenants.refresh()
        await self.keeper.recover()
        await self.retention.recover()
        await self.quotas.look_at_disks()
        in_force, default_s = self.interpreter.dataplane.state.plan, self.settings.requests.default_deadline_s
        submit(await recover(journal, self.jobs, self.inputs, self.interpreter.clock, default_s, in_force))
        self.fleet.follow(self.plans.plan)
        if self.admin is not None:
            await self.admin.start()
            self.admin.set_serving()
        self._start_background()

    async def finish(self) -> None:
        """Wait until every accepted request has ended; unfinished ones stay in the journal for the next start."""
        try:
            self.shadows.close()
            self.interpreter.submit(DrainRequested())
            if self._superseded:
                return
            if self.registration is not None:
                self.registration.report_soon()
            await self.drained.wait()
            await self.jobs.finish_tasks()
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
            await self.usage.flush()
        self.interpreter.close()
        if self.recorder is not None:
            self.recorder.close()
        await self.jobs.cancel_tasks()
        await self.fleet.links.close()
        self.keeper.close()
        self.results.close()

    def _start_background(self) -> None:
        dataplane = self.interpreter.dataplane
        self.run_until_closed(partial(publish_levels_forever, dataplane, self.fleet.links), "levels")
        self.run_until_closed(self.keeper.move_forever, "objects")
        self.run_until_closed(self.retention.run_forever, "retention")
        self.run_until_closed(self.quotas.watch_disks_forever, "disks")
        self.run_until_closed(self._tell_whether_accepting, "acceptance")
        self.run_until_closed(self.webhooks.run_forever, "webhooks")
        self.run_until_closed(self.shadows.run_forever, "shadows")
        self.run_until_closed(self.tenants.follow_forever, "tenants")
        self.run_until_closed(self.usage.run_forever, "usage")
        self.run_until_closed(self.erasures.run_forever, "erasures")
        self.run_until_closed(self.abilities.ask_forever, "discriminators")
        self.run_until_closed(partial(self.plans.run, self._on_plan), "plan")

    async def _tell_whether_accepting(self) -> None:
        """Report NOT_SERVING, with the reason, while every new request would be rejected. Running requests continue,
        and calls are answered."""
        told = ""
        while True:
            blocked = self.acceptance.blocked
            if blocked != told:
                self.server.hold_back(blocked)
                logger.warning("new requests are %s", f"rejected: {blocked}" if blocked else "accepted again")
            told = blocked
            await asyncio.sleep(_LOOK_S)

    def _on_plan(self, plan: Plan) -> None:
        self.interpreter.submit(PlanReceived(plan))
        self.fleet.follow(plan)

    def _on_superseded(self) -> None:
        """Stop: another active frontdoor fences off this one's work, and clients find their requests there."""
        self._superseded = True
        self.interpreter.close()
        self.api.hand_over()
        signal.raise_signal(signal.SIGTERM)


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
