"""Construct a frontdoor process."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from grpc.aio import Channel

from pentimento.api.frontdoor.v1.frontdoor_service_pb2_grpc import add_FrontdoorServiceServicer_to_server
from pentimento.api.image.v1.image_service_pb2_grpc import add_ImageServiceServicer_to_server
from pentimento.api.tenants.v1.tenant_service_pb2_grpc import add_TenantServiceServicer_to_server
from pentimento.clients.controller import Registration, RegistrationNews
from pentimento.clients.discriminator import DiscriminatorClient, SafetyClient
from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.embedders import Embedders
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.gateway import GatewayClient
from pentimento.dataplane import Dataplane, DataplaneSettings, effects
from pentimento.dataplane.demand_report import DemandReport, StartCounts
from pentimento.domain.clock import Backoff, Clock, SystemClock
from pentimento.domain.embedding import Space
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import ReplicaKind
from pentimento.files.ed25519_keys import keep_signing_keys, read_private_key
from pentimento.files.receipts import seal
from pentimento.policies.latent_pairing import TIGHT_SHARE, PairingMode
from pentimento.policies.worth import CASCADE, Worth
from pentimento.profiles.catalogue import HandoverProfiles, StepProfiles
from pentimento.profiles.document import ProfileKind
from pentimento.rpc import RpcServer
from pentimento.rpc.channel import channel_opener
from pentimento.rpc.tokens import KeyRing
from pentimento.rpc.watched_file import SharedKeys, kept_signing_keys
from pentimento.service.fleet_member import FleetMember, PlanFollower
from pentimento.service.followed_profiles import FollowedProfiles
from pentimento.service.lease import LedgerLease
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.webhooks import JournalWebhooks
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.store import PathSigner
from pentimento.stores.objects.suspects import Suspects
from services.frontdoor.answers.delivery import Deliveries, RecordedAnswers
from services.frontdoor.identity import Identity, build_version
from services.frontdoor.interpreter import EffectsRecorder, Interpreter
from services.frontdoor.journal.commits import Commits
from services.frontdoor.journal.retention import Retention
from services.frontdoor.objects.content_credentials import ContentCredentials
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.objects.results import Results, ResultUrls
from services.frontdoor.process import Frontdoor
from services.frontdoor.quality.comparison import KEPT, Deferrals, KeptPairs
from services.frontdoor.quality.shadow_plans import ShadowPainter
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.requests.arrivals import Admissions, Arrivals, KeyOwners
from services.frontdoor.requests.cells import CellGate
from services.frontdoor.requests.image_api import ImageApi
from services.frontdoor.requests.jobs import Job, Jobs
from services.frontdoor.requests.limits import Acceptance, Quotas
from services.frontdoor.requests.pins import Pins
from services.frontdoor.requests.safety import SafetyGate
from services.frontdoor.requests.tenant_requests import TenantRequests
from services.frontdoor.requests.validation import Validation
from services.frontdoor.routing.abilities import DiscriminatorAbilities
from services.frontdoor.routing.cache_writes import CacheWriter
from services.frontdoor.routing.discriminators import Discriminators
from services.frontdoor.routing.explaining import Explainer
from services.frontdoor.routing.foresight import Foresight
from services.frontdoor.routing.light_starts import LightStarts
from services.frontdoor.routing.prompts import PromptEmbedder
from services.frontdoor.routing.routes import Router
from services.frontdoor.routing.stages import StageChoice
from services.frontdoor.routing.start_choice import StartChoice
from services.frontdoor.routing.step_rules import ControlPipelining, FeatureReuse, StepRules, ThinningOffers
from services.frontdoor.servicer import FRONTDOOR_SERVICE, IMAGE_SERVICE, FrontdoorServicer, ImageServicer
from services.frontdoor.settings import FIXED, FixedLimits, FrontdoorSettings
from services.frontdoor.status import Offers, PaintedCounts
from services.frontdoor.tenants.administration import TENANT_SERVICE, TenantServicer
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.erasures import Erasures, TenantStores
from services.frontdoor.tenants.usage import UsageMeter
from services.frontdoor.webhooks.calling import WebhookCaller, webhook_rules
from services.frontdoor.webhooks.delivering import DeliveryLimits, Webhooks
from services.frontdoor.workers.attempt_results import AttemptResults
from services.frontdoor.workers.attempts import AttemptStarter, AttemptStreams
from services.frontdoor.workers.catalogue import AdapterCatalogue, Catalogue
from services.frontdoor.workers.fleet import WatchedFleet
from services.frontdoor.workers.worker_links import WorkerLinks

T = TypeVar("T")
# Seconds between the three bad readings before an object is moved to the quarantine.
QUARANTINE_S = 3600.0


def signing_keys(settings: FrontdoorSettings) -> SharedKeys | None:
    """Return the source of the keys for addresses and webhooks; None without a file."""
    path = settings.signing_key_file
    if path is None:
        return None
    if settings.makes_signing_key:
        keep_signing_keys(path)
    elif not path.exists():
        raise InvalidArgument.of("signing_key_file", f"must exist with cells, and over PostgreSQL: {path} is missing")
    return kept_signing_keys(path)


def wire(settings: FrontdoorSettings, journal: Journal, epoch: int, fixed: FixedLimits = FIXED) -> Frontdoor:
    """Construct a frontdoor, inside the event loop that the process runs on. `epoch` 0: a standby, until
    `Frontdoor.warm` is done. Raises FailedPrecondition, SettingsError, InvalidArgument naming a file that is no
    profile."""
    clock, ring, opening = SystemClock(), KeyRing(), channel_opener(settings.channels)
    server = RpcServer(settings.rpc, "frontdoor", ring, takes_turns=True)
    member = FleetMember(server, ReplicaKind.FRONTDOOR, settings)
    dataplane = Dataplane(epoch, dataplane_settings(settings, fixed))
    interpreter = Interpreter(dataplane, clock)
    identity = Identity(settings.frontdoor_id, epoch)

    def called(client: Callable[[Channel], T]) -> Callable[[str], T]:
        return lambda address: client(opening(address))

    # Tenants and their requests.
    tenants = TenantDirectory(journal.tenants, ring, interpreter.submit)
    usage = UsageMeter(journal.tenants, clock)
    jobs, acceptance = Jobs(interpreter.submit), Acceptance(usage, clock)
    own_cell = settings.frontdoor_id if settings.cells else ""
    cells = CellGate(settings.read_cells(), own_cell, called(FrontdoorClient), jobs, journal)
    keys = signing_keys(settings)
    webhooks = wire_webhooks(settings, fixed, journal.webhooks, keys)

    # Objects.
    signer = (lambda: PathSigner(*keys())) if keys else None
    keeper = ObjectKeeper(
        lambda: open_objects(settings.objects_url, signer),
        journal.objects,
        settings.quotas.spool_bytes,
        fixed.store_timeout_s,
    )
    inputs = Inputs(keeper, jobs.spawn_background)
    jobs.on_end = partial(_on_end, inputs, webhooks)
    results = Results(keeper, clock, build_version(), Suspects(QUARANTINE_S), _credentials(settings))
    quotas = Quotas(settings.quotas, jobs, inputs, keeper, journal.objects, acceptance)
    limits, most_finished = settings.retention, fixed.tenant_finished_requests
    retention = Retention(journal, keeper, results, inputs, clock, limits, most_finished, tenants.retentions_s)
    requests = TenantRequests(journal, dataplane, jobs, results, cells, partial(_retention_s, settings, tenants))

    # Workers and optional services.
    catalogue, adapters = Catalogue(settings.default_model, worker_wait_s=settings.worker_wait_s), AdapterCatalogue()
    links = WorkerLinks(opening, catalogue, adapters, interpreter.submit, identity, settings.worker_silence_s)
    gateway = GatewayClient(opening(settings.gateway_address)) if settings.gateway_address else None
    wait_factor = settings.part_wait_factor
    texts, images = _embedders(settings, called(EmbedderClient))
    prompts = PromptEmbedder(texts, images, gateway is not None, wait_factor)
    scorers, checked = settings.discriminator_addresses, frozenset(settings.safety_checks)
    abilities = DiscriminatorAbilities(called(DiscriminatorClient), scorers, checked)
    discriminators = Discriminators(called(DiscriminatorClient), scorers, abilities.may_score)
    safety = SafetyGate(called(SafetyClient), scorers, abilities.may_check, checked)
    pins = Pins(journal, gateway, keeper, journal.pins.clock, settings.quotas.tenant_input_bytes)
    fleet = WatchedFleet(links, catalogue, adapters, prompts, discriminators, settings.worker_addresses)

    # Quality of delivered images.
    starts, pairs = StartCounts(), KeptPairs(keeper, clock, KEPT if settings.quality.quality_sample_share else 0)
    painter = ShadowPainter(links, identity)
    sources = (journal, results, catalogue, dataplane, clock)
    shadows = Shadows(settings.quality, fixed, *sources, painter, prompts, gateway, starts, pairs)
    compare = partial(jobs.spawn_background, cause="compare")
    deferrals = Deferrals(fixed.deferral_sample_share, prompts, starts, pairs, compare)

    # Routes.
    rules, cost_s = _step_rules(settings, catalogue, adapters), settings.cache_cost_ms / 1000
    cascade = settings.cascade if len(settings.cascade) > 1 else ()
    stages = StageChoice(dataplane, catalogue, adapters, tenants, cascade)
    choice = StartChoice(dataplane, gateway, stages, catalogue, rules, Worth(cost_s), wait_factor)
    foresight = Foresight(dataplane, choice, prompts, discriminators, Worth(cost_s, CASCADE), wait_factor)

    # Performers of effects.
    answers = RecordedAnswers(journal, results, jobs)
    admissions = Admissions(interpreter, journal, identity, jobs, inputs, acceptance, answers, shadows)
    router = Router(interpreter, jobs, stages, prompts, choice, foresight, rules, starts)
    cache = CacheWriter(gateway, prompts, jobs, tenants, usage, wait_factor) if gateway is not None else None
    painted = PaintedCounts()
    taken = AttemptResults(rules.pipelining, cache, starts, painted, clock)
    streams = AttemptStreams(interpreter, jobs, links, inputs, rules, shadows, taken)
    starter = AttemptStarter(interpreter, journal, identity, jobs, catalogue, cache, shadows, streams)
    commits = Commits(interpreter, journal, identity, jobs, safety, results, pins, retention)
    deliveries = Deliveries(jobs, usage, shadows, deferrals, clock)
    drained = asyncio.Event()
    interpreter.perform_with(
        {
            effects.PersistAccepted: admissions.persist_accepted,
            effects.Announce: admissions.announce,
            effects.Reject: admissions.reject,
            effects.PrepareRoute: router.prepare_route,
            effects.ResolveRoute: router.resolve_route,
            effects.Score: router.score,
            effects.PersistAttempt: starter.persist_attempt,
            effects.Attach: starter.attach,
            effects.Execute: streams.execute,
            effects.StopAttempt: streams.stop_attempt,
            effects.ThinAttempt: streams.thin_attempt,
            effects.ReservePair: streams.reserve_pair,
            effects.CommitResult: commits.commit_result,
            effects.PersistEnd: commits.persist_end,
            effects.CommitCacheEntries: cache.commit_entries if cache is not None else _ignore,
            effects.ReleaseGrant: cache.release_grant if cache is not None else _ignore,
            effects.Deliver: deliveries.deliver,
            effects.DeliverEnd: deliveries.deliver_end,
            effects.DeliverRecorded: answers.deliver_recorded,
            effects.Drained: lambda effect: drained.set(),
        }
    )

    # Calls.
    owners = KeyOwners(journal, cells, acceptance)
    arrivals = Arrivals(interpreter, owners, answers, cells, quotas, inputs, catalogue, rules)
    validation = Validation(identity, stages, safety, pins, requests, settings.requests)
    api = ImageApi(interpreter, jobs, arrivals, validation, requests, webhooks.rules)
    explainer = Explainer(dataplane, gateway, catalogue, prompts, choice, foresight, rules, validation)
    urls = ResultUrls(keeper, clock)
    offers, instance_id = Offers(dataplane, catalogue, adapters), server.instance_id
    public = ImageServicer(api, requests, pins, explainer, offers, cells, urls, webhooks, fixed.stream_idle_s)
    status = FrontdoorServicer(instance_id, identity, dataplane, acceptance, links, painted, shadows, offers, cells)
    server.add(add_ImageServiceServicer_to_server, public, IMAGE_SERVICE)
    server.add(add_FrontdoorServiceServicer_to_server, status, FRONTDOOR_SERVICE)
    erasures = _erasures(settings, TenantStores(journal, keeper, retention, pairs, gateway), identity, clock)
    grace_s = settings.tenant_grace_h * 3600
    administration = TenantServicer(journal.tenants, tenants, usage, erasures, clock, grace_s)
    return Frontdoor(
        settings=settings,
        server=server,
        registration=_registration(member, DemandReport(dataplane, starts), catalogue),
        interpreter=interpreter,
        identity=identity,
        journal=journal,
        lease=LedgerLease(journal, settings.frontdoor_id, settings.lease_s),
        jobs=jobs,
        api=api,
        quotas=quotas,
        acceptance=acceptance,
        tenants=tenants,
        usage=usage,
        keeper=keeper,
        results=results,
        inputs=inputs,
        retention=retention,
        shadows=shadows,
        webhooks=webhooks,
        erasures=erasures,
        fleet=fleet,
        abilities=abilities,
        plans=PlanFollower(member.controller, instance_id, store=journal, clock=clock),
        drained=drained,
        admin=_admin_server(settings, administration),
        recorder=_recorder(settings.record_effects, interpreter),
    )


def _ignore(effect: effects.Effect) -> None:
    """Perform an effect of the cache without one: no attempt has a grant."""


def _retention_s(settings: FrontdoorSettings, tenants: TenantDirectory, tenant: str) -> float:
    own_h = tenants.quota_of(tenant).retention_h
    return (settings.retention.result_retention_h if own_h is None else own_h) * 3600


def _erasures(settings: FrontdoorSettings, stores: TenantStores, identity: Identity, clock: Clock) -> Erasures:
    file = settings.receipt_key_file
    key = read_private_key(file, "receipt_key_file") if file is not None else None
    return Erasures(stores, identity, clock, settings.tenant_grace_h * 3600, lambda receipt: seal(receipt, key))


def _admin_server(settings: FrontdoorSettings, administration: TenantServicer) -> RpcServer | None:
    """Return a separate server with the same tokens and certificates; None if no address is configured for it. It
    accepts no tenants' keys."""
    if not settings.admin_listen:
        return None
    server = RpcServer(replace(settings.rpc, listen=settings.admin_listen, metrics_listen=""), "frontdoor-admin")
    server.add(add_TenantServiceServicer_to_server, administration, TENANT_SERVICE)
    return server


def _on_end(inputs: Inputs, webhooks: Webhooks, job: Job) -> None:
    inputs.release(job)
    if job.request.is_job:
        webhooks.wake()


def _registration(member: FleetMember, demand: DemandReport, catalogue: Catalogue) -> Registration | None:
    return member.registration(
        lambda replica: replace(replica, build_version=build_version(), device="cpu"),
        lambda report: catalogue.added_to(demand.added_to(report)),
        RegistrationNews(demand.begin, demand.answered),
    )


def _recorder(path: str, interpreter: Interpreter) -> EffectsRecorder | None:
    """Return a recorder that truncates the file at `path`; None if `path` is empty."""
    if not path:
        return None
    recorder = EffectsRecorder(Path(path), interpreter.dataplane)
    interpreter.observer = recorder.record
    return recorder


def _step_rules(settings: FrontdoorSettings, catalogue: Catalogue, adapters: AdapterCatalogue) -> StepRules:
    profiles, promise = FollowedProfiles(settings.profiles), settings.promise.of_reuse
    steps, handovers = StepProfiles(profiles, promise.alpha, promise.rule), HandoverProfiles(profiles, promise)
    return StepRules(
        adapters,
        ControlPipelining(settings.controlnet_pipelining, profiles),
        settings.latent_parallel,
        ThinningOffers(settings.thinning, steps),
        FeatureReuse(settings.feature_reuse, replace(steps, kind=ProfileKind.FEATURES)),
        LightStarts(settings.handover, handovers, catalogue),
    )


def _embedders(
    settings: FrontdoorSettings, client: Callable[[str], EmbedderClient]
) -> tuple[Embedders | None, Embedders | None]:
    """Return the embedders of texts, and of images if they may have an encoder of their own, each the plan's and the
    configured ones. None, and no cache, if none is configured."""
    given = settings.embedder_address
    if len(given) < 2:
        return (Embedders(client, given) if given else None), None
    return Embedders(client, given, Space.TEXT), Embedders(client, given, Space.IMAGE)


def _credentials(settings: FrontdoorSettings) -> ContentCredentials | None:
    """Return the signer of images; None without a certificate."""
    path = settings.c2pa_certificate_file
    return ContentCredentials(path, build_version(), settings.c2pa_timestamp_url) if path is not None else None


def dataplane_settings(settings: FrontdoorSettings, fixed: FixedLimits) -> DataplaneSettings:
    return DataplaneSettings(
        queue_limit=settings.queue_limit,
        drop_late=settings.drop_late,
        confidence_threshold=settings.confidence_threshold,
        accept_unscored=settings.fall_back,
        fall_back=settings.fall_back,
        skip_light_below=settings.skip_light_below,
        thinning=settings.thinning,
        pair_tight_share=None if settings.latent_parallel is PairingMode.ALWAYS else TIGHT_SHARE,
        max_reruns=settings.max_reruns,
        suspect_wait_s=fixed.suspect_wait_s,
        orphan_wait_s=fixed.orphan_wait_s,
    )


def wire_webhooks(
    settings: FrontdoorSettings, fixed: FixedLimits, journal: JournalWebhooks, keys: SharedKeys | None
) -> Webhooks:
    """Return the webhooks that the settings allow; none are called without hosts. Raises InvalidArgument naming the
    wrong setting."""
    rules = webhook_rules(settings.webhook_hosts)
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
