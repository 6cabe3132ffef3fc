"""Puts a frontdoor process together."""

import asyncio
import signal
from collections.abc import Coroutine
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pentimento.api.frontdoor.v1.frontdoor_service_pb2_grpc import add_FrontdoorServiceServicer_to_server
from pentimento.api.image.v1.image_service_pb2_grpc import add_ImageServiceServicer_to_server
from pentimento.clients.controller import ControllerClient
from pentimento.clients.discriminator import DiscriminatorClient
from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.gateway import GatewayClient
from pentimento.clients.registration import Registration, generation_at
from pentimento.dataplane import Dataplane, DataplaneSettings, effects
from pentimento.dataplane.events import DrainRequested, PlanReceived, TookOver
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import Plan, Replica, ReplicaKind
from pentimento.policies.cache_selection import SelectionRules
from pentimento.rpc import RpcServer, open_channel
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.objects import open_objects
from services.frontdoor.answers.delivery import Delivery
from services.frontdoor.identity import Identity
from services.frontdoor.interpreter import Interpreter
from services.frontdoor.journal.journalling import Journalling
from services.frontdoor.journal.lease import JournalLease
from services.frontdoor.journal.recovery import recover
from services.frontdoor.journal.retention import Retention, RetentionLimits
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import KeepingLimits, ObjectKeeper
from services.frontdoor.objects.results import Results
from services.frontdoor.recorder import EffectsRecorder
from services.frontdoor.requests.callers import Callers
from services.frontdoor.requests.image_api import ImageApi
from services.frontdoor.requests.jobs import Jobs
from services.frontdoor.requests.quotas import QuotaLimits, Quotas
from services.frontdoor.requests.resolution import RequestLimits
from services.frontdoor.routing.cache_writes import CacheWrites
from services.frontdoor.routing.route_performer import RoutePerformer
from services.frontdoor.routing.router import CacheTimeouts, Router
from services.frontdoor.routing.scoring import Discriminators, ScorePerformer
from services.frontdoor.routing.stages import StageChoice
from services.frontdoor.servicer import FRONTDOOR_SERVICE, IMAGE_SERVICE, FrontdoorServicer, ImageServicer
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.status import DemandReport, StartCounts, frontdoor_status, publish_levels_forever
from services.frontdoor.workers.attempt_runner import AttemptPerformer
from services.frontdoor.workers.catalogue import Catalogue
from services.frontdoor.workers.plan_watch import PlanWatch
from services.frontdoor.workers.speeds import read_profiles
from services.frontdoor.workers.worker_links import WorkerLinks


def build_version() -> str:
    """Of the installed package; "source" for a bare source tree."""
    try:
        return version("pentimento")
    except PackageNotFoundError:
        return "source"


async def run(settings: FrontdoorSettings) -> None:
    """The life of the process, from the claim of an epoch to the last answer."""
    journal = await asyncio.to_thread(open_journal, settings.ledger_url)
    try:
        epoch = 0 if settings.standby else await asyncio.wrap_future(journal.claim_epoch(settings.frontdoor_id))
        frontdoor = Frontdoor(settings, journal, epoch)
        try:
            await frontdoor.server.run_until_stopped(frontdoor.warm, frontdoor.drain)
        finally:
            await frontdoor.close()
    finally:
        await asyncio.to_thread(journal.close)


class Frontdoor:
    """The composition root: constructs everything, starts and stops it."""

    def __init__(self, settings: FrontdoorSettings, journal: Journal, epoch: int) -> None:
        """Call it inside the event loop that the process runs on. `epoch` 0: a standby, until `warm` is done."""
        self.settings = settings
        self.server = RpcServer(settings.rpc, "frontdoor")
        self._journal = journal
        self._clock = SystemClock()
        self._identity = Identity(settings.frontdoor_id, epoch)
        self._lease = JournalLease(journal, self._identity, self._clock, settings.lease_s)
        self._generation = generation_at(self._clock)
        self._drained = asyncio.Event()
        self._catalogue = Catalogue(settings.default_model)
        self._starts = StartCounts()
        self._dataplane = Dataplane(epoch, dataplane_settings(settings))
        self._interpreter = Interpreter(self._dataplane, self._clock)
        self._jobs = Jobs(self._interpreter.submit)
        self._recorder = self._open_recorder()
        self._discriminators = Discriminators(
            lambda address: DiscriminatorClient(open_channel(address, settings.channels)),
            settings.discriminator_addresses,
        )
        self._keeper = ObjectKeeper(
            lambda: open_objects(settings.objects_url), journal.objects, keeping_limits(settings)
        )
        self._inputs = Inputs(self._keeper, self._jobs.spawn_background)
        self._jobs.on_end = self._inputs.release
        self._results = Results(self._keeper, self._clock, build_version())
        self._quotas = Quotas(quota_limits(settings), self._jobs, self._inputs, self._keeper, journal.objects)
        self._retention = Retention(
            journal, self._keeper, self._results, self._inputs, self._clock, retention_limits(settings)
        )
        self._links = WorkerLinks(
            lambda address: open_channel(address, settings.channels),
            self._catalogue,
            self._interpreter.submit,
            self._identity,
            settings.worker_silence_s,
        )
        self._controller = self._open_controller()
        self._plans = PlanWatch(self._controller, journal, self.server.instance_id, self._clock)
        self._registration: Registration | None = None
        self._forever: list[asyncio.Task[None]] = []
        self._superseded = False
        self._api = self._connect_parts()
        self._add_services()

    async def warm(self) -> None:
        """Take over what an earlier frontdoor left, follow the last plan, and wait a while for a worker.

        A standby waits for its turn first.
        """
        if not self._identity.epoch:
            self._identity.epoch = await self._lease.wait_and_take_over()
            self._interpreter.submit(TookOver(self._identity.epoch))
        self._identity.journal_id = await asyncio.wrap_future(self._journal.identity())
        if profiles := read_profiles(self.settings.profiles):
            self._interpreter.submit(profiles)
        if (plan := await self._plans.load()) is not None:
            self._interpreter.submit(PlanReceived(plan))
        await self._keeper.recover()
        await self._retention.recover()
        await self._quotas.look_at_disks()
        default_s = self.settings.default_deadline_s
        self._interpreter.submit(await recover(self._journal, self._jobs, self._inputs, self._clock, default_s))
        self._follow_workers()
        self._start_background()
        try:
            async with asyncio.timeout(self.settings.worker_wait_s):
                await self._catalogue.wait_for_any()
        except TimeoutError:
            pass

    async def drain(self) -> None:
        """Until every accepted request has ended; those that have not are in the journal for the next start."""
        try:
            self._interpreter.submit(DrainRequested())
            if self._superseded:
                return
            if self._registration is not None:
                self._registration.report_soon()
            await self._drained.wait()
            await self._jobs.finish_tasks()
        finally:
            self.stop_listening_to_clients()

    def stop_listening_to_clients(self) -> None:
        """From here on streams break because the process stops; that cancels no request."""
        self._api.stopping = True

    async def close(self) -> None:
        if self._registration is not None:
            await self._registration.close()
        for task in self._forever:
            task.cancel()
        self._interpreter.close()
        if self._recorder is not None:
            self._recorder.close()
        await self._jobs.cancel_tasks()
        await self._links.close()
        self._keeper.close()

    def _connect_parts(self) -> ImageApi:
        """Who performs which effect, and the API over all of them."""
        submit, jobs, clock = self._interpreter.submit, self._jobs, self._clock
        timeouts = cache_timeouts_of(self.settings)
        gateway = self._open_gateway()
        router = Router(self._open_embedder(), gateway, timeouts)
        delivery = Delivery(self._journal, self._results, jobs, clock)
        cache = CacheWrites(gateway, jobs, timeouts, SelectionRules())
        journalling = Journalling(
            self._journal,
            self._results,
            cache,
            delivery,
            jobs,
            submit,
            clock,
            self._identity,
            self._catalogue,
            self._inputs,
            self._retention,
        )
        scores = ScorePerformer(self._discriminators, jobs, submit, clock, self.settings.score_timeout_ms / 1000)
        routes = RoutePerformer(router, self._catalogue, jobs, self._dataplane, submit, clock, self._starts.count)
        attempts = AttemptPerformer(
            self._links, jobs, cache.report_bad_donor, submit, clock, self._identity, self._inputs
        )
        self._interpreter.perform_with(
            {
                effects.Reject: delivery.reject,
                effects.PersistAccepted: journalling.persist_accepted,
                effects.PrepareRoute: routes.prepare,
                effects.Announce: delivery.announce,
                effects.ResolveRoute: routes.resolve,
                effects.PersistAttempt: journalling.persist_attempt,
                effects.Execute: attempts.execute,
                effects.Attach: attempts.attach,
                effects.StopAttempt: attempts.stop,
                effects.CommitResult: journalling.commit_result,
                effects.CommitCacheEntries: cache.commit,
                effects.ReleaseGrant: cache.release,
                effects.PersistEnd: journalling.persist_end,
                effects.Drop: journalling.drop,
                effects.Score: scores.score,
                effects.ReservePair: attempts.reserve_pair,
                effects.Hedge: attempts.hedge,
                effects.Deliver: delivery.deliver,
                effects.DeliverEnd: delivery.deliver_end,
                effects.DeliverRecorded: delivery.deliver_recorded,
                effects.Drained: lambda effect: self._drained.set(),
            }
        )
        return self._open_api(router)

    def _open_api(self, router: Router) -> ImageApi:
        return ImageApi(
            self._interpreter,
            self._jobs,
            self._journal,
            self._results,
            router,
            self._catalogue,
            StageChoice(self._catalogue, self._dataplane, self.settings.cascade),
            request_limits(self.settings),
            self._clock,
            self._inputs,
            self._quotas,
            Callers(self.settings.calls_per_key),
        )

    def _add_services(self) -> None:
        images = ImageServicer(self._api, self.settings.stream_idle_s)
        self.server.add(add_ImageServiceServicer_to_server, images, IMAGE_SERVICE)
        status = FrontdoorServicer(
            lambda: frontdoor_status(self._dataplane, self.server.instance_id), self._links, self._identity
        )
        self.server.add(add_FrontdoorServiceServicer_to_server, status, FRONTDOOR_SERVICE)

    def _start_background(self) -> None:
        self._keep(self._lease.hold(self._on_superseded))
        self._keep(publish_levels_forever(self._dataplane, self._links))
        self._keep(self._keeper.move_forever())
        self._keep(self._retention.run_forever())
        self._keep(self._quotas.watch_disks_forever())
        self._keep(self._plans.run(self._on_plan))
        if self._controller is not None:
            report = DemandReport(self._dataplane, self._starts, self.server.instance_id, self._generation)
            self._registration = Registration(self._controller, self._replica, report.take)
            self._registration.start()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        self._forever.append(asyncio.get_running_loop().create_task(work))

    def _on_plan(self, plan: Plan) -> None:
        self._interpreter.submit(PlanReceived(plan))
        self._follow_workers()

    def _on_superseded(self) -> None:
        """Another frontdoor is active: whatever this one still does is fenced off. Its clients find theirs there."""
        self._superseded = True
        self.stop_listening_to_clients()
        self._interpreter.close()
        signal.raise_signal(signal.SIGTERM)

    def _follow_workers(self) -> None:
        plan = self._plans.plan
        endpoints = plan.endpoints if plan is not None else ()
        self._discriminators.follow(
            tuple(endpoint.address for endpoint in endpoints if endpoint.kind is ReplicaKind.DISCRIMINATOR)
        )
        planned = {assignment.address: False for assignment in plan.assignments} if plan is not None else {}
        self._links.follow(planned | dict.fromkeys(self.settings.worker_addresses, True))

    def _replica(self) -> Replica:
        address = self.settings.advertise_address or self.server.bound_addresses[0]
        identity = (self.server.instance_id, ReplicaKind.FRONTDOOR, address, self._generation)
        return Replica(*identity, build_version=build_version(), device="cpu")

    def _open_recorder(self) -> EffectsRecorder | None:
        if not self.settings.record_effects:
            return None
        recorder = EffectsRecorder(Path(self.settings.record_effects), self._dataplane)
        self._interpreter.observer = recorder.record
        return recorder

    def _open_controller(self) -> ControllerClient | None:
        address = self.settings.controller_address
        return ControllerClient(open_channel(address, self.settings.channels)) if address else None

    def _open_embedder(self) -> EmbedderClient | None:
        address = self.settings.embedder_address
        return EmbedderClient(open_channel(address, self.settings.channels)) if address else None

    def _open_gateway(self) -> GatewayClient | None:
        address = self.settings.gateway_address
        return GatewayClient(open_channel(address, self.settings.channels)) if address else None


def dataplane_settings(settings: FrontdoorSettings) -> DataplaneSettings:
    return DataplaneSettings(
        queue_limit=settings.queue_limit,
        drop_late=settings.drop_late,
        confidence_threshold=settings.confidence_threshold,
        accept_unscored=settings.accept_unscored,
        fall_back=settings.fall_back,
        hedge_after=settings.hedge_after or None,
        max_reruns=settings.max_reruns,
        suspect_wait_s=settings.suspect_wait_s,
        orphan_wait_s=settings.orphan_wait_s,
    )


def cache_timeouts_of(settings: FrontdoorSettings) -> CacheTimeouts:
    return CacheTimeouts(
        embed_s=settings.embed_timeout_ms / 1000,
        lookup_s=settings.lookup_timeout_ms / 1000,
        reserve_s=settings.reserve_timeout_ms / 1000,
    )


def request_limits(settings: FrontdoorSettings) -> RequestLimits:
    return RequestLimits(
        max_prompt_bytes=settings.max_prompt_bytes,
        max_request_cost=settings.max_request_cost,
        max_init_image_bytes=settings.max_init_image_bytes,
        default_deadline_ms=round(settings.default_deadline_s * 1000),
        max_deadline_ms=round(settings.max_deadline_s * 1000),
    )


def keeping_limits(settings: FrontdoorSettings) -> KeepingLimits:
    return KeepingLimits(
        put_timeout_s=settings.store_timeout_ms / 1000,
        spool_bytes=settings.spool_bytes,
        tenant_spool_bytes=settings.tenant_spool_bytes,
    )


def quota_limits(settings: FrontdoorSettings) -> QuotaLimits:
    return QuotaLimits(
        tenant_unfinished_requests=settings.tenant_unfinished_requests,
        tenant_unfinished_bytes=settings.tenant_unfinished_bytes,
        min_free_bytes=settings.min_free_bytes,
    )


def retention_limits(settings: FrontdoorSettings) -> RetentionLimits:
    return RetentionLimits(
        retention_s=settings.result_retention_h * 3600,
        tenant_result_bytes=settings.tenant_result_bytes,
        tenant_finished_requests=settings.tenant_finished_requests,
        sweep_interval_s=settings.sweep_interval_s,
    )
