"""Construct a frontdoor process."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from grpc.aio import Channel

from pentimento.api.frontdoor.v1.frontdoor_service_pb2_grpc import add_FrontdoorServiceServicer_to_server
from pentimento.api.image.v1.image_service_pb2_grpc import add_ImageServiceServicer_to_server
from pentimento.api.tenants.v1.tenant_service_pb2_grpc import add_TenantServiceServicer_to_server
from pentimento.clients.discriminator import DiscriminatorClient, SafetyClient
from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.embedders import Embedders
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.gateway import GatewayClient
from pentimento.clients.registration import Registration, RegistrationNews
from pentimento.dataplane import Dataplane, DataplaneSettings, effects
from pentimento.dataplane.demand_report import DemandReport, StartCounts
from pentimento.domain.clock import Backoff, SystemClock
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import ReplicaKind
from pentimento.files.ed25519_keys import read_private_key
from pentimento.files.receipts import seal
from pentimento.files.signing_keys import keep_signing_keys
from pentimento.policies.latent_pairing import TIGHT_SHARE, PairingMode
from pentimento.policies.worth import CASCADE, Worth
from pentimento.profiles.catalogue import HandoverProfiles, ReusePromise, StepProfiles, read_profiles
from pentimento.profiles.document import ProfileKind
from pentimento.rpc import RpcServer
from pentimento.rpc.channel import ChannelOpener, channel_opener
from pentimento.rpc.shared_keys import SigningKeys, kept_signing_keys
from pentimento.rpc.tokens import KeyRing
from pentimento.rpc.transport import MAX_MESSAGE_BYTES
from pentimento.service.fleet_member import FleetMember
from pentimento.service.lease import LedgerLease
from pentimento.service.plan_follower import PlanFollower
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.webhooks import JournalWebhooks
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.signed_paths import PathSigner
from pentimento.stores.objects.suspects import Suspects
from services.frontdoor.answers import delivery
from services.frontdoor.identity import Identity, build_version
from services.frontdoor.interpreter import EffectsRecorder, Interpreter
from services.frontdoor.journal import journalling
from services.frontdoor.journal.retention import Retention
from services.frontdoor.objects.content_credentials import ContentCredentials, CredentialFiles
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.objects.results import Results, ResultUrls
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.process import Frontdoor
from services.frontdoor.quality.comparison import KEPT, Deferrals, KeptPairs
from services.frontdoor.quality.shadow_plans import ShadowPainter
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.requests.cells import CellGate
from services.frontdoor.requests.image_api import ImageApi
from services.frontdoor.requests.jobs import Job, Jobs
from services.frontdoor.requests.limits import Quotas
from services.frontdoor.requests.pins import Pins
from services.frontdoor.requests.safety import SafetyGate
from services.frontdoor.requests.tenant_requests import TenantRequests
from services.frontdoor.routing import cache_writes, routes
from services.frontdoor.routing.discriminators import Discriminators
from services.frontdoor.routing.light_starts import LightStarts
from services.frontdoor.routing.step_rules import ControlPipelining, FeatureReuse, ThinningOffers
from services.frontdoor.servicer import FRONTDOOR_SERVICE, IMAGE_SERVICE, FrontdoorServicer, ImageServicer
from services.frontdoor.settings import FIXED, FixedLimits, FrontdoorSettings
from services.frontdoor.tenants.administration import TENANT_SERVICE, TenantAdministration, TenantServicer
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.erasures import Erasures, TenantStores
from services.frontdoor.tenants.usage import UsageMeter
from services.frontdoor.webhooks.calling import WebhookCaller, webhook_rules
from services.frontdoor.webhooks.delivering import DeliveryLimits, Webhooks
from services.frontdoor.workers import attempts
from services.frontdoor.workers.catalogue import AdapterCatalogue, Catalogue
from services.frontdoor.workers.worker_links import WorkerLinks

T = TypeVar("T")
# Seconds between the three bad readings before an object is moved to the quarantine.
QUARANTINE_S = 3600.0
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
    effects.Score: routes.score,
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


def wire(settings: FrontdoorSettings, journal: Journal, epoch: int, fixed: FixedLimits = FIXED) -> Frontdoor:
    """Construct a frontdoor, inside the event loop that the process runs on. `epoch` 0: a standby, until
    `Frontdoor.warm` is done."""
    ring = KeyRing()
    server = RpcServer(settings.rpc, "frontdoor", ring, takes_turns=True)
    interpreter = Interpreter(Dataplane(epoch, dataplane_settings(settings, fixed)), SystemClock())
    keys = signing_keys(settings)
    signer = (lambda: PathSigner(*keys())) if keys else None
    keeper = ObjectKeeper(
        lambda: open_objects(settings.objects_url, signer), journal.objects, settings.spool_bytes, fixed.store_timeout_s
    )
    tenant_book = TenantDirectory(journal.tenants, ring, interpreter.submit)
    identity = Identity(settings.frontdoor_id, epoch)
    jobs = Jobs(interpreter.submit)
    parts = wire_parts(settings, fixed, journal, identity, interpreter, keeper, tenant_book, jobs)
    interpreter.perform_with({kind: partial(perform, parts) for kind, perform in PERFORMERS.items()})
    quotas = Quotas(settings.quotas, parts.jobs, parts.inputs, keeper, journal.objects)
    tenants = TenantRequests(
        journal, parts.dataplane, lambda tenant: _retention_s(settings, tenant_book, tenant), parts.cells
    )
    webhooks = wire_webhooks(settings, fixed, journal.webhooks, keys)
    parts.jobs.on_end = partial(_on_end, parts.inputs, webhooks)
    api = ImageApi(parts, settings.requests, settings.cascade, quotas, tenants, webhooks.check)
    urls = ResultUrls(keeper, parts.clock, settings.max_result_url_s)
    images = ImageServicer(api, tenants, urls, webhooks, fixed.stream_idle_s, MAX_MESSAGE_BYTES)
    status = FrontdoorServicer(server.instance_id, parts, api)
    server.add(add_ImageServiceServicer_to_server, images, IMAGE_SERVICE)
    server.add(add_FrontdoorServiceServicer_to_server, status, FRONTDOOR_SERVICE)
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


def _retention_s(settings: FrontdoorSettings, tenants: TenantDirectory, tenant: str) -> float:
    own_h = tenants.quota_of(tenant).retention_h
    return (settings.retention.result_retention_h if own_h is None else own_h) * 3600


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
    if job.request.is_job:
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


def wire_parts(
    settings: FrontdoorSettings,
    fixed: FixedLimits,
    journal: Journal,
    identity: Identity,
    interpreter: Interpreter,
    keeper: ObjectKeeper,
    tenants: TenantDirectory,
    jobs: Jobs,
) -> FrontdoorParts:
    """Return the parts. Raises FailedPrecondition, SettingsError, InvalidArgument naming a file that is no profile."""
    opening, clock = channel_opener(settings.channels), SystemClock()

    def called(client: Callable[[Channel], T]) -> Callable[[str], T]:
        return lambda address: client(opening(address))

    own_cell = settings.frontdoor_id if settings.cells else ""
    embedder, image_embedder = _embedders(settings, opening)
    gateway = GatewayClient(opening(settings.gateway_address)) if settings.gateway_address else None
    catalogue, adapters = Catalogue(settings.default_model, worker_wait_s=settings.worker_wait_s), AdapterCatalogue()
    links = WorkerLinks(opening, catalogue, adapters, interpreter.submit, identity, settings.worker_silence_s)
    inputs = Inputs(keeper, jobs.spawn_background)
    results = Results(keeper, clock, build_version(), Suspects(QUARANTINE_S), _credentials(settings))
    starts, pairs = StartCounts(), KeptPairs(keeper, clock, KEPT if settings.quality.quality_sample_share else 0)
    compare = partial(jobs.spawn_background, cause="compare")
    profiles, rule = read_profiles(settings.profiles), settings.profile_rule.rule
    steps = StepProfiles(profiles, settings.thinning_alpha, rule)
    handovers = HandoverProfiles(profiles, ReusePromise(settings.handover_alpha, rule))
    return FrontdoorParts(
        journal=journal,
        dataplane=interpreter.dataplane,
        submit=interpreter.submit,
        clock=clock,
        identity=identity,
        jobs=jobs,
        catalogue=catalogue,
        adapters=adapters,
        pipelining=ControlPipelining(settings.controlnet_pipelining, profiles),
        pairing=settings.latent_parallel,
        thinning=ThinningOffers(settings.thinning, steps),
        features=FeatureReuse(settings.feature_reuse, replace(steps, kind=ProfileKind.FEATURES)),
        light_starts=LightStarts(settings.handover, handovers),
        links=links,
        embedder=embedder,
        image_embedder=image_embedder,
        gateway=gateway,
        cache_worth=Worth(settings.cache_cost_ms / 1000),
        cascade_worth=Worth(settings.cache_cost_ms / 1000, CASCADE),
        discriminators=Discriminators(called(DiscriminatorClient), settings.discriminator_addresses),
        safety=SafetyGate(called(SafetyClient), settings.safety_addresses, frozenset(settings.safety_checks)),
        inputs=inputs,
        results=results,
        pins=Pins(journal, gateway, keeper, journal.pins.clock, settings.tenant_pinned_bytes),
        retention=Retention(
            journal,
            keeper,
            results,
            inputs,
            clock,
            settings.retention,
            fixed.tenant_finished_requests,
            tenants.retentions_s,
        ),
        shadows=Shadows(
            settings=settings.quality,
            fixed=fixed,
            journal=journal,
            results=results,
            catalogue=catalogue,
            dataplane=interpreter.dataplane,
            clock=clock,
            painter=ShadowPainter(links, identity),
            embedder=embedder,
            image_embedder=image_embedder,
            gateway=gateway,
            counts=starts,
            pairs=pairs,
        ),
        deferrals=Deferrals(fixed.deferral_sample_share, image_embedder, starts, pairs, compare),
        starts=starts,
        tenants=tenants,
        usage=UsageMeter(journal.tenants, clock),
        cells=CellGate(settings.read_cells(), own_cell, called(FrontdoorClient), jobs, journal),
        wait_factor=settings.part_wait_factor,
    )


def _embedders(settings: FrontdoorSettings, opening: ChannelOpener) -> tuple[Embedders, Embedders] | tuple[None, None]:
    """Return the embedders of texts and of images, each the plan's and the configured one: the same ones unless images
    have an encoder of their own. None, and no cache, if none is configured."""
    if not settings.embedder_address:
        return None, None
    texts = Embedders(lambda address: EmbedderClient(opening(address)), settings.embedder_address)
    if not settings.image_embedder_address:
        return texts, texts
    return texts, Embedders(lambda address: EmbedderClient(opening(address)), settings.image_embedder_address)


def _credentials(settings: FrontdoorSettings) -> ContentCredentials | None:
    """Return the signer of images; None without a certificate."""
    certificate, key = settings.c2pa_certificate_file, settings.c2pa_key_file
    if certificate is None or key is None:
        return None
    return ContentCredentials(CredentialFiles(certificate, key, settings.c2pa_timestamp_url), build_version())


def dataplane_settings(settings: FrontdoorSettings, fixed: FixedLimits) -> DataplaneSettings:
    return DataplaneSettings(
        queue_limit=settings.queue_limit,
        drop_late=settings.drop_late,
        confidence_threshold=settings.confidence_threshold,
        accept_unscored=settings.accept_unscored,
        fall_back=settings.fall_back,
        skip_light_below=settings.skip_light_below,
        thinning=settings.thinning,
        pair_tight_share=None if settings.latent_parallel is PairingMode.ALWAYS else TIGHT_SHARE,
        max_reruns=settings.max_reruns,
        suspect_wait_s=fixed.suspect_wait_s,
        orphan_wait_s=fixed.orphan_wait_s,
    )


def wire_webhooks(
    settings: FrontdoorSettings, fixed: FixedLimits, journal: JournalWebhooks, keys: SigningKeys | None
) -> Webhooks:
    """Return the webhooks that the settings allow; none are called without hosts. Raises InvalidArgument naming the
    wrong setting."""
    rules = webhook_rules(settings.webhook_hosts, settings.webhook_networks, settings.webhook_plain_http)
    # Reading the system's authorities is slow; a start without webhooks skips it.
    tls = _believing(settings) if rules.hosts else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller = WebhookCaller(rules, tls, fixed.webhook_timeout_s)
    limits = DeliveryLimits(
        fixed.webhook_tries,
        Backoff(fixed.webhook_pause_s, max_s=3600.0),
        # Requests are stored that long; a webhook of a shorter retention has the time of its tries, 2.5 h.
        max(settings.retention.result_retention_h * 3600, 9000.0),
    )
    return Webhooks(journal, SystemClock(), caller, rules, keys or tuple, limits)


def _believing(settings: FrontdoorSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.webhook_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument.of("webhook_ca_file", f"cannot be read: {type(error).__name__}") from None
