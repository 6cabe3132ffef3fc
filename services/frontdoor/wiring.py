"""Construct a frontdoor process."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pentimento.api.frontdoor.v1.frontdoor_service_pb2_grpc import add_FrontdoorServiceServicer_to_server
from pentimento.api.image.v1.image_service_pb2_grpc import add_ImageServiceServicer_to_server
from pentimento.api.tenants.v1.tenant_service_pb2_grpc import add_TenantServiceServicer_to_server
from pentimento.clients.registration import Registration, RegistrationNews
from pentimento.dataplane import Dataplane, effects
from pentimento.dataplane.demand_report import DemandReport
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import ReplicaKind
from pentimento.files.ed25519_keys import read_private_key
from pentimento.files.receipts import seal
from pentimento.files.signing_keys import keep_signing_keys
from pentimento.rpc import RpcServer
from pentimento.rpc.shared_keys import SigningKeys, kept_signing_keys
from pentimento.rpc.tokens import KeyRing
from pentimento.service.fleet_member import FleetMember
from pentimento.service.lease import LedgerLease
from pentimento.service.plan_follower import PlanFollower
from pentimento.stores.ledger import Journal
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.signed_paths import PathSigner
from services.frontdoor.answers import delivery
from services.frontdoor.identity import Identity, build_version
from services.frontdoor.interpreter import Interpreter
from services.frontdoor.journal import journalling
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.objects.result_urls import ResultUrls
from services.frontdoor.part_settings import dataplane_settings, keeping_limits, quota_limits, request_limits
from services.frontdoor.part_wiring import PartBase, wire_parts
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.process import Frontdoor
from services.frontdoor.recorder import EffectsRecorder
from services.frontdoor.requests.callers import Callers
from services.frontdoor.requests.image_api import ImageApi
from services.frontdoor.requests.jobs import Job, Jobs
from services.frontdoor.requests.quotas import Quotas
from services.frontdoor.requests.tenant_requests import TenantRequests
from services.frontdoor.routing import cache_writes, routes, scoring
from services.frontdoor.servicer import FRONTDOOR_SERVICE, IMAGE_SERVICE, FrontdoorServicer, ImageServicer
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.status import FrontdoorStatus, frontdoor_status
from services.frontdoor.tenants.administration import TenantAdministration
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.erasures import Erasures, TenantStores
from services.frontdoor.tenants.servicer import TENANT_SERVICE, TenantServicer
from services.frontdoor.webhooks.delivering import Webhooks
from services.frontdoor.webhooks.wiring import wire_webhooks
from services.frontdoor.workers import attempts

PERFORMERS: Mapping[type, Callable[[FrontdoorParts, Any], None]] = {
    effects.Reject: delivery.reject,
    effects.PersistAccepted: journalling.persist_accepted,
    effects.PrepareRoute: routes.prepare_route,
    effects.Announce: delivery.announce,
    effects.ResolveRoute: routes.resolve_route,
    effects.PersistAttempt: journalling.persist_attempt,
    effects.Execute: attempts.execute,
    effects.Attach: attempts.attach,
    effects.StopAttempt: attempts.stop_attempt,
    effects.ThinAttempt: attempts.thin_attempt,
    effects.CommitResult: journalling.commit_result,
    effects.CommitCacheEntries: cache_writes.commit_entries,
    effects.ReleaseGrant: cache_writes.release_grant,
    effects.PersistEnd: journalling.persist_end,
    effects.Drop: journalling.drop,
    effects.Score: scoring.score,
    effects.ReservePair: attempts.reserve_pair,
    effects.Deliver: delivery.deliver,
    effects.DeliverEnd: delivery.deliver_end,
    effects.DeliverRecorded: delivery.deliver_recorded,
    effects.Drained: delivery.note_drained,
}


def signing_keys(settings: FrontdoorSettings) -> SigningKeys | None:
    """Return the source of the keys for addresses and webhooks; None without a file."""
    if settings.signing_key_file is None:
        return None
    if settings.make_signing_key:
        keep_signing_keys(settings.signing_key_file)
    return kept_signing_keys(settings.signing_key_file)


def wire(settings: FrontdoorSettings, journal: Journal, epoch: int) -> Frontdoor:
    """Construct a frontdoor, inside the event loop that the process runs on. `epoch` 0: a standby, until
    `Frontdoor.warm` is done."""
    ring = KeyRing()
    server = RpcServer(settings.rpc, "frontdoor", ring, takes_turns=True)
    interpreter = Interpreter(Dataplane(epoch, dataplane_settings(settings)), SystemClock())
    keys = signing_keys(settings)
    signer = (lambda: PathSigner(*keys())) if keys else None
    keeper = ObjectKeeper(lambda: open_objects(settings.objects_url, signer), journal.objects, keeping_limits(settings))
    tenant_book = TenantDirectory(journal.tenants, ring, interpreter.submit)
    identity = Identity(settings.frontdoor_id, epoch)
    jobs = Jobs(interpreter.submit)
    parts = wire_parts(PartBase(settings, journal, identity, interpreter, keeper, tenant_book, jobs))
    interpreter.perform_with({kind: partial(perform, parts) for kind, perform in PERFORMERS.items()})
    quotas = Quotas(quota_limits(settings), parts.jobs, parts.inputs, keeper, journal.objects)
    tenants = TenantRequests(
        journal, parts.dataplane, lambda tenant: _retention_s(settings, tenant_book, tenant), parts.cells
    )
    webhooks = wire_webhooks(settings, journal.webhooks, parts.clock, keys)
    parts.jobs.on_end = partial(_on_end, parts.inputs, webhooks)
    callers = Callers(settings.calls_per_key)
    api = ImageApi(parts, request_limits(settings), settings.cascade, quotas, callers, tenants, webhooks.check)
    urls = ResultUrls(keeper, parts.clock, settings.result_url_s, settings.max_result_url_s)
    sends = (settings.stream_idle_s, settings.rpc.max_message_bytes)
    _add_services(server, parts, api, ImageServicer(api, tenants, urls, webhooks, *sends))
    member = FleetMember(server, ReplicaKind.FRONTDOOR, settings)
    erasures = _erasures(settings, parts, keeper)
    return Frontdoor(
        settings=settings,
        server=server,
        parts=parts,
        interpreter=interpreter,
        api=api,
        lease=LedgerLease(journal, settings.frontdoor_id, settings.lease_s),
        keeper=keeper,
        quotas=quotas,
        webhooks=webhooks,
        erasures=erasures,
        admin=_admin_server(settings, journal, parts, erasures),
        plans=PlanFollower(member.controller, server.instance_id, store=journal, clock=parts.clock),
        registration=_registration(member, parts),
        recorder=_recorder(settings.record_effects, interpreter),
    )


def _add_services(server: RpcServer, parts: FrontdoorParts, api: ImageApi, images: ImageServicer) -> None:
    server.add(add_ImageServiceServicer_to_server, images, IMAGE_SERVICE)

    def told() -> FrontdoorStatus:
        return frontdoor_status(parts.dataplane, server.instance_id, parts.painted, parts.acceptance, parts.shadows)

    status = FrontdoorServicer(told, parts.links, parts.identity, api, parts.cells)
    server.add(add_FrontdoorServiceServicer_to_server, status, FRONTDOOR_SERVICE)


def _retention_s(settings: FrontdoorSettings, tenants: TenantDirectory, tenant: str) -> float:
    own_h = tenants.quota_of(tenant).retention_h
    return (settings.result_retention_h if own_h is None else own_h) * 3600


def _erasures(settings: FrontdoorSettings, parts: FrontdoorParts, keeper: ObjectKeeper) -> Erasures:
    file = settings.receipt_key_file
    key = read_private_key(file, "receipt_key_file") if file is not None else None
    stores = TenantStores(parts.journal, keeper, parts.retention, parts.shadows.pairs, parts.gateway)
    grace_s = settings.tenant_grace_h * 3600
    return Erasures(stores, parts.identity, parts.clock, grace_s, lambda receipt: seal(receipt, key))


def _admin_server(
    settings: FrontdoorSettings, journal: Journal, parts: FrontdoorParts, erasures: Erasures
) -> RpcServer | None:
    """Return a separate server with the same tokens and certificates; None if no address is configured for it. It
    accepts no tenants' keys."""
    if not settings.admin_listen:
        return None
    server = RpcServer(replace(settings.rpc, listen=settings.admin_listen, metrics_listen=""), "frontdoor-admin")
    grace_s = settings.tenant_grace_h * 3600
    administration = TenantAdministration(journal.tenants, parts.tenants, parts.usage, erasures, parts.clock, grace_s)
    server.add(add_TenantServiceServicer_to_server, TenantServicer(administration), TENANT_SERVICE)
    return server


def _on_end(inputs: Inputs, webhooks: Webhooks, job: Job) -> None:
    inputs.release(job)
    if job.request.terms is not None:
        webhooks.wake()


def _registration(member: FleetMember, parts: FrontdoorParts) -> Registration | None:
    demand = DemandReport(parts.dataplane, parts.starts)
    return member.registration(
        lambda replica: replace(replica, build_version=build_version(), device="cpu"),
        lambda report: parts.catalogue.added_to(demand.added_to(report)),
        RegistrationNews(demand.begin, demand.answered),
    )


def _recorder(path: str, interpreter: Interpreter) -> EffectsRecorder | None:
    """Return a recorder that truncates the file at `path`; None if `path` is empty."""
    if not path:
        return None
    recorder = EffectsRecorder(Path(path), interpreter.dataplane)
    interpreter.observer = recorder.record
    return recorder
