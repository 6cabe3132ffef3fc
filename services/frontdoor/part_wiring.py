"""Construct the parts of a frontdoor."""

from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict

from pentimento.clients.discriminator import DiscriminatorClient
from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.embedders import Embedders
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.gateway import GatewayClient
from pentimento.clients.safety import SafetyClient
from pentimento.dataplane.demand_report import StartCounts
from pentimento.domain.clock import Clock, SystemClock
from pentimento.policies.latent_pairing import PairingMode
from pentimento.policies.worth import CASCADE, Worth
from pentimento.profiles.document import ProfileKind
from pentimento.rpc.channel import ChannelOpener, channel_opener
from pentimento.stores.ledger import Journal
from pentimento.stores.objects.suspects import Suspects
from services.frontdoor.identity import Identity, build_version
from services.frontdoor.interpreter import Interpreter
from services.frontdoor.journal.retention import Retention
from services.frontdoor.objects.content_credentials import ContentCredentials, CredentialFiles
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.objects.results import Results
from services.frontdoor.part_settings import (
    control_pipelining,
    light_starts,
    part_timeouts,
    pin_limits,
    retention_limits,
    shadow_settings,
    step_profiles,
    thinning_offers,
)
from services.frontdoor.parts import FrontdoorParts, PartTimeouts
from services.frontdoor.quality.deferrals import Deferrals
from services.frontdoor.quality.kept_pairs import KeptPairs
from services.frontdoor.quality.shadow_painter import ShadowPainter
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.requests.cells import CellGate
from services.frontdoor.requests.jobs import Jobs
from services.frontdoor.requests.pins import Pins
from services.frontdoor.requests.safety import SafetyGate
from services.frontdoor.routing.discriminators import Discriminators
from services.frontdoor.routing.feature_reuse import FeatureReuse
from services.frontdoor.routing.light_starts import LightStarts
from services.frontdoor.routing.pipelining import ControlPipelining
from services.frontdoor.routing.thinning import ThinningOffers
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.usage import UsageMeter
from services.frontdoor.workers.adapter_catalogue import AdapterCatalogue
from services.frontdoor.workers.catalogue import Catalogue
from services.frontdoor.workers.worker_links import WorkerLinks


@dataclass(frozen=True)
class PartBase:
    """Hold what the parts are constructed from."""

    settings: FrontdoorSettings
    journal: Journal
    identity: Identity
    interpreter: Interpreter
    keeper: ObjectKeeper
    tenants: TenantDirectory
    jobs: Jobs
    clock: Clock = field(default_factory=SystemClock)


def wire_parts(base: PartBase) -> FrontdoorParts:
    """Return the parts. Raises FailedPrecondition, SettingsError."""
    opening = channel_opener(base.settings.channels)
    callees, workers = _callees(base.settings, opening), _workers(base, opening)
    stored = _stored(base, callees["gateway"])
    return FrontdoorParts(
        journal=base.journal,
        dataplane=base.interpreter.dataplane,
        submit=base.interpreter.submit,
        clock=base.clock,
        identity=base.identity,
        jobs=base.jobs,
        tenants=base.tenants,
        usage=UsageMeter(base.journal.tenants, base.clock),
        cells=_cells(base, opening),
        **callees,
        **workers,
        **stored,
        **_compared(base, callees, workers, stored["results"]),
        **_decisions(base.settings),
    )


class _Callees(TypedDict):
    """Hold the services that a frontdoor calls besides the workers, None for one that is not configured."""

    embedder: Embedders | None
    image_embedder: Embedders | None
    gateway: GatewayClient | None
    discriminators: Discriminators
    safety: SafetyGate


def _callees(settings: FrontdoorSettings, opening: ChannelOpener) -> _Callees:
    embedder, image_embedder = _embedders(settings, opening)
    return {
        "embedder": embedder,
        "image_embedder": image_embedder,
        "gateway": GatewayClient(opening(settings.gateway_address)) if settings.gateway_address else None,
        "discriminators": Discriminators(
            lambda address: DiscriminatorClient(opening(address)), settings.discriminator_addresses
        ),
        "safety": SafetyGate(
            lambda address: SafetyClient(opening(address)), settings.safety_addresses, frozenset(settings.safety_checks)
        ),
    }


def _embedders(settings: FrontdoorSettings, opening: ChannelOpener) -> tuple[Embedders, Embedders] | tuple[None, None]:
    """Return the embedders of texts and of images, each the plan's and the configured one: the same ones unless images
    have an encoder of their own. None, and no cache, if none is configured."""
    if not settings.embedder_address:
        return None, None
    texts = Embedders(lambda address: EmbedderClient(opening(address)), settings.embedder_address)
    if not settings.image_embedder_address:
        return texts, texts
    return texts, Embedders(lambda address: EmbedderClient(opening(address)), settings.image_embedder_address)


class _Workers(TypedDict):
    """Hold the workers, and what they hold."""

    catalogue: Catalogue
    adapters: AdapterCatalogue
    pairing: PairingMode
    links: WorkerLinks


def _workers(base: PartBase, opening: ChannelOpener) -> _Workers:
    settings, adapters = base.settings, AdapterCatalogue()
    catalogue = Catalogue(settings.default_model, worker_wait_s=settings.worker_wait_s)
    submit, silence_s = base.interpreter.submit, settings.worker_silence_s
    return {
        "catalogue": catalogue,
        "adapters": adapters,
        "pairing": settings.latent_parallel,
        "links": WorkerLinks(opening, catalogue, adapters, submit, base.identity, silence_s),
    }


class _Stored(TypedDict):
    """Hold the parts with objects in the object store."""

    inputs: Inputs
    results: Results
    pins: Pins
    retention: Retention


def _stored(base: PartBase, gateway: GatewayClient | None) -> _Stored:
    settings, journal, keeper, clock = base.settings, base.journal, base.keeper, base.clock
    inputs = Inputs(keeper, base.jobs.spawn_background)
    suspects, credentials = Suspects(settings.quarantine_s), content_credentials(settings)
    results = Results(keeper, clock, build_version(), suspects, credentials)
    limits, own_s = retention_limits(settings), base.tenants.retentions_s
    return {
        "inputs": inputs,
        "results": results,
        "pins": Pins(journal, gateway, keeper, journal.pins.clock, pin_limits(settings)),
        "retention": Retention(journal, keeper, results, inputs, clock, limits, own_s),
    }


def content_credentials(settings: FrontdoorSettings) -> ContentCredentials | None:
    """Return the signer of images; None without a certificate. Raises FailedPrecondition, SettingsError."""
    certificate, key = settings.c2pa_certificate_file, settings.c2pa_key_file
    if certificate is None or key is None:
        return None
    return ContentCredentials(CredentialFiles(certificate, key, settings.c2pa_timestamp_url), build_version())


class _Comparisons(TypedDict):
    """Hold the parts that generate or score images again."""

    starts: StartCounts
    shadows: Shadows
    deferrals: Deferrals


def _compared(base: PartBase, callees: _Callees, workers: _Workers, results: Results) -> _Comparisons:
    settings, image_embedder = base.settings, callees["image_embedder"]
    starts, pairs = StartCounts(), KeptPairs(base.keeper, base.clock, settings.kept_pairs)
    background = partial(base.jobs.spawn_background, cause="compare")
    return {
        "starts": starts,
        "shadows": Shadows(
            settings=shadow_settings(settings),
            journal=base.journal,
            results=results,
            catalogue=workers["catalogue"],
            dataplane=base.interpreter.dataplane,
            clock=base.clock,
            painter=ShadowPainter(workers["links"], base.identity),
            embedder=callees["embedder"],
            image_embedder=image_embedder,
            gateway=callees["gateway"],
            counts=starts,
            pairs=pairs,
        ),
        "deferrals": Deferrals(settings.deferral_sample_share, image_embedder, starts, pairs, background),
    }


def _cells(base: PartBase, opening: ChannelOpener) -> CellGate:
    own = base.settings.frontdoor_id if base.settings.cells else ""
    return CellGate(
        base.settings.read_cells(), own, lambda address: FrontdoorClient(opening(address)), base.jobs, base.journal
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
