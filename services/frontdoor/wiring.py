"""Construct a frontdoor process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from pentimento.api.frontdoor.v1.frontdoor_service_pb2_grpc import add_FrontdoorServiceServicer_to_server
from pentimento.api.image.v1.image_service_pb2_grpc import add_ImageServiceServicer_to_server
from pentimento.api.tenants.v1.tenant_service_pb2_grpc import add_TenantServiceServicer_to_server
from pentimento.clients.discriminator import DiscriminatorClient
from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.embedders import Embedders
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.gateway import GatewayClient
from pentimento.clients.registration import Registration, RegistrationNews
from pentimento.clients.safety import SafetyClient
from pentimento.dataplane import Dataplane, effects
from pentimento.dataplane.demand_report import DemandReport, StartCounts
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import ReplicaKind
from pentimento.files.ed25519_keys import read_private_key
from pentimento.files.receipts import seal
from pentimento.files.signing_keys import keep_signing_keys
from pentimento.policies.worth import CASCADE, Worth
from pentimento.profiles.document import ProfileKind
from pentimento.rpc import RpcServer
from pentimento.rpc.channel import ChannelOpener, channel_opener
from pentimento.rpc.shared_keys import SigningKeys, kept_signing_keys
from pentimento.rpc.tokens import KeyRing
from pentimento.service.fleet_member import FleetMember
from pentimento.service.lease import LedgerLease
from pentimento.service.plan_follower import PlanFollower
from pentimento.stores.ledger import Journal
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.signed_paths import PathSigner
from pentimento.stores.objects.suspects import Suspects
from services.frontdoor.answers import delivery
from services.frontdoor.identity import Identity, build_version
from services.frontdoor.interpreter import Interpreter
from services.frontdoor.journal import journalling
from services.frontdoor.journal.retention import Retention
from services.frontdoor.objects.content_credentials import ContentCredentials, CredentialFiles
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.objects.result_urls import ResultUrls
from services.frontdoor.objects.results import Results
from services.frontdoor.part_settings import (
    control_pipelining,
    dataplane_settings,
    keeping_limits,
    light_starts,
    part_timeouts,
    pin_limits,
    quota_limits,
    request_limits,
    retention_limits,
    shadow_settings,
    step_profiles,
    thinning_offers,
)
from services.frontdoor.parts import FrontdoorParts, PartTimeouts
from services.frontdoor.process import Frontdoor
from services.frontdoor.quality.deferrals import Deferrals
from services.frontdoor.quality.kept_pairs import KeptPairs
from services.frontdoor.quality.shadow_painter import ShadowPainter
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.recorder import EffectsRecorder
from services.frontdoor.requests.callers import Callers
from services.frontdoor.requests.cells import CellGate
from services.frontdoor.requests.image_api import ImageApi
from services.frontdoor.requests.jobs import Job, Jobs
from services.frontdoor.requests.pins import Pins
from services.frontdoor.requests.quotas import Quotas
from services.frontdoor.requests.safety import SafetyGate
from services.frontdoor.requests.tenant_requests import TenantRequests
from services.frontdoor.routing import cache_writes, routes, scoring
from services.frontdoor.routing.discriminators import Discriminators
from services.frontdoor.routing.feature_reuse import FeatureReuse
from services.frontdoor.routing.light_starts import LightStarts
from services.frontdoor.routing.pipelining import ControlPipelining
from services.frontdoor.routing.thinning import ThinningOffers
from services.frontdoor.servicer import FRONTDOOR_SERVICE, IMAGE_SERVICE, FrontdoorServicer, ImageServicer
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.status import FrontdoorStatus, frontdoor_status
from services.frontdoor.tenants.administration import TenantAdministration
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.erasures import Erasures, TenantStores
from services.frontdoor.tenants.servicer import TENANT_SERVICE, TenantServicer
from services.frontdoor.tenants.usage import UsageMeter
from services.frontdoor.webhooks.delivering import Webhooks
from services.frontdoor.webhooks.wiring import wire_webhooks
from services.frontdoor.workers import attempts
from services.frontdoor.workers.adapter_catalogue import AdapterCatalogue
from services.frontdoor.workers.catalogue import Catalogue
from services.frontdoor.workers.worker_links import WorkerLinks

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


def content_credentials(settings: FrontdoorSettings) -> ContentCredentials | None:
    """Return the signer of images; None without a certificate. Raises FailedPrecondition, SettingsError."""
    certificate, key = settings.c2pa_certificate_file, settings.c2pa_key_file
    if certificate is None or key is None:
        return None
    return ContentCredentials(CredentialFiles(certificate, key, settings.c2pa_timestamp_url), build_version())


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
    parts = _parts(settings, journal, identity, interpreter, keeper, tenant_book)
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


class _Decisions(TypedDict):
    """Hold the parts that decide by the settings alone."""

    pipelining: ControlPipelining
    thinning: ThinningOffers
    features: FeatureReuse
    light_starts: LightStarts
    cache_worth: Worth
    cascade_worth: Worth
    timeouts: PartTimeouts


def _decisions(settings: FrontdoorSettings) -> _Decisions:
    profiles = step_profiles(settings, ProfileKind.FEATURES)
    return {
        "pipelining": control_pipelining(settings),
        "thinning": thinning_offers(settings),
        "features": FeatureReuse(settings.feature_reuse, profiles, settings.cached_thinned_share),
        "light_starts": light_starts(settings),
        "cache_worth": Worth(settings.cache_cost_ms / 1000),
        "cascade_worth": Worth(settings.cache_cost_ms / 1000, CASCADE),
        "timeouts": part_timeouts(settings),
    }


@dataclass(frozen=True)
class _Callees:
    """Hold the services that a frontdoor calls besides the workers, None for one that is not configured, and `opening`
    for their addresses."""

    opening: ChannelOpener
    embedder: Embedders | None
    image_embedder: Embedders | None
    gateway: GatewayClient | None
    discriminators: Discriminators
    safety: SafetyGate


def _callees(settings: FrontdoorSettings) -> _Callees:
    opening = channel_opener(settings.channels)
    gateway = opening(settings.gateway_address) if settings.gateway_address else None
    embedder, image_embedder = _embedders(settings, opening)
    return _Callees(
        opening,
        embedder,
        image_embedder,
        GatewayClient(gateway) if gateway is not None else None,
        Discriminators(lambda address: DiscriminatorClient(opening(address)), settings.discriminator_addresses),
        SafetyGate(
            lambda address: SafetyClient(opening(address)), settings.safety_addresses, frozenset(settings.safety_checks)
        ),
    )


def _parts(
    settings: FrontdoorSettings,
    journal: Journal,
    identity: Identity,
    interpreter: Interpreter,
    keeper: ObjectKeeper,
    tenants: TenantDirectory,
) -> FrontdoorParts:
    clock, jobs = SystemClock(), Jobs(interpreter.submit)
    callees = _callees(settings)
    # Workers, and what they hold.
    catalogue = Catalogue(settings.default_model, worker_wait_s=settings.worker_wait_s)
    adapters = AdapterCatalogue()
    silence_s = settings.worker_silence_s
    links = WorkerLinks(callees.opening, catalogue, adapters, interpreter.submit, identity, silence_s)
    # Images in the object store, and images that are generated or scored again.
    inputs = Inputs(keeper, jobs.spawn_background)
    suspects, credentials = Suspects(settings.quarantine_s), content_credentials(settings)
    results = Results(keeper, clock, build_version(), suspects, credentials)
    starts, pairs = StartCounts(), KeptPairs(keeper, clock, settings.kept_pairs)
    shadows = Shadows(
        settings=shadow_settings(settings),
        journal=journal,
        results=results,
        catalogue=catalogue,
        dataplane=interpreter.dataplane,
        clock=clock,
        painter=ShadowPainter(links, identity),
        embedder=callees.embedder,
        image_embedder=callees.image_embedder,
        gateway=callees.gateway,
        counts=starts,
        pairs=pairs,
    )
    background = partial(jobs.spawn_background, cause="compare")
    return FrontdoorParts(
        journal=journal,
        dataplane=interpreter.dataplane,
        submit=interpreter.submit,
        clock=clock,
        identity=identity,
        jobs=jobs,
        catalogue=catalogue,
        adapters=adapters,
        pairing=settings.latent_parallel,
        links=links,
        embedder=callees.embedder,
        image_embedder=callees.image_embedder,
        gateway=callees.gateway,
        discriminators=callees.discriminators,
        safety=callees.safety,
        inputs=inputs,
        results=results,
        pins=Pins(journal, callees.gateway, keeper, journal.pins.clock, pin_limits(settings)),
        retention=Retention(journal, keeper, results, inputs, clock, retention_limits(settings), tenants.retentions_s),
        shadows=shadows,
        deferrals=Deferrals(settings.deferral_sample_share, callees.image_embedder, starts, pairs, background),
        starts=starts,
        tenants=tenants,
        usage=UsageMeter(journal.tenants, clock),
        cells=CellGate(
            settings.read_cells(),
            settings.frontdoor_id if settings.cells else "",
            lambda address: FrontdoorClient(callees.opening(address)),
            jobs,
            journal,
        ),
        **_decisions(settings),
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


def _embedders(settings: FrontdoorSettings, opening: ChannelOpener) -> tuple[Embedders, Embedders] | tuple[None, None]:
    """Return the embedders of texts and of images, each the plan's and the configured one: the same ones unless images
    have an encoder of their own. None, and no cache, if none is configured."""
    if not settings.embedder_address:
        return None, None
    texts = Embedders(lambda address: EmbedderClient(opening(address)), settings.embedder_address)
    if not settings.image_embedder_address:
        return texts, texts
    return texts, Embedders(lambda address: EmbedderClient(opening(address)), settings.image_embedder_address)
