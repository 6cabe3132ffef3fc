"""Hold the parts that perform the dataplane's effects."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from pentimento.clients.embedders import Embedders
from pentimento.clients.gateway import GatewayClient
from pentimento.dataplane import Dataplane
from pentimento.dataplane.demand_report import StartCounts
from pentimento.dataplane.events import AttemptKey, Event
from pentimento.domain.clock import Clock
from pentimento.policies.latent_pairing import PairingMode
from pentimento.policies.worth import Worth
from pentimento.stores.ledger import Journal
from services.frontdoor.identity import Identity
from services.frontdoor.journal.retention import Retention
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.results import Results
from services.frontdoor.quality.comparison import Deferrals
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.requests.cells import CellGate
from services.frontdoor.requests.jobs import Jobs, PendingEntries
from services.frontdoor.requests.limits import Acceptance
from services.frontdoor.requests.pins import Pins
from services.frontdoor.requests.safety import SafetyGate
from services.frontdoor.routing.discriminators import Discriminators
from services.frontdoor.routing.light_starts import LightStarts
from services.frontdoor.routing.step_rules import ControlPipelining, FeatureReuse, ThinningOffers
from services.frontdoor.status import PaintedCounts
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.usage import UsageMeter
from services.frontdoor.workers.catalogue import AdapterCatalogue, Catalogue
from services.frontdoor.workers.worker_links import WorkerLinks


@dataclass(frozen=True, slots=True)
class FrontdoorParts:
    """Hold the parts of one frontdoor, which stay the same for its life.

    A function that performs an effect takes them and the effect, and returns at once; its answer goes to `submit`.
    Without `embedder` or `gateway` every request starts from noise. `image_embedder` embeds images, and prompts to find
    them: `embedder` itself unless images have an encoder of their own. `grants` holds what attempts may write to the
    cache, until it is committed or released. `wait_factor` multiplies the waits for parts that requests can do without.
    """

    journal: Journal
    dataplane: Dataplane
    submit: Callable[[Event], None]
    clock: Clock
    identity: Identity
    jobs: Jobs
    catalogue: Catalogue
    adapters: AdapterCatalogue
    pipelining: ControlPipelining
    pairing: PairingMode
    thinning: ThinningOffers
    features: FeatureReuse
    light_starts: LightStarts
    links: WorkerLinks
    embedder: Embedders | None
    image_embedder: Embedders | None
    gateway: GatewayClient | None
    cache_worth: Worth
    cascade_worth: Worth
    discriminators: Discriminators
    safety: SafetyGate
    inputs: Inputs
    results: Results
    pins: Pins
    retention: Retention
    shadows: Shadows
    deferrals: Deferrals
    starts: StartCounts
    tenants: TenantDirectory
    usage: UsageMeter
    cells: CellGate
    wait_factor: float
    painted: PaintedCounts = field(default_factory=PaintedCounts)
    acceptance: Acceptance = field(default_factory=Acceptance)
    grants: dict[AttemptKey, PendingEntries] = field(default_factory=dict)
    drained: asyncio.Event = field(default_factory=asyncio.Event)
