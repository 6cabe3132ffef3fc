"""Define adapters and their catalogue for the tests of this folder."""

from lab.fixtures.held_models import HELD
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.execution import WorkerCredits
from pentimento.domain.fleet import AdapterPlacement, Capability, Plan, ReplicaKind, ServiceEndpoint
from pentimento.domain.generation import PlanVersion
from services.frontdoor.workers.catalogue import AdapterCatalogue

FAMILY = HELD.family
BOTH = frozenset({Capability.LORA, Capability.CONTROLNET, Capability.IP_ADAPTER})
NEON = Adapter("neon", AdapterKind.LORA, "sha256:neon", FAMILY, HELD.model_digest, latest_start_fraction=0.2)
MOSAIC = Adapter("mosaic", AdapterKind.LORA, "sha256:mosaic", FAMILY, latest_start_fraction=0.5)
FOREIGN = Adapter("foreign", AdapterKind.LORA, "sha256:foreign", "stable_diffusion_3")
EDGES = Adapter("edges", AdapterKind.CONTROLNET, "sha256:edges", FAMILY, HELD.model_digest, depth_digest="sha256:depth")
UNION = Adapter("union", AdapterKind.CONTROLNET, "sha256:union", FAMILY, control_kind_count=6)
LAYOUT = Adapter("layout", AdapterKind.CONTROLNET, "sha256:layout", FAMILY)
STYLE = Adapter("style", AdapterKind.IP_ADAPTER, "sha256:style", FAMILY, HELD.model_digest)
GONE = Adapter("gone", AdapterKind.CONTROLNET, "sha256:gone", FAMILY)


def credits(*known: Adapter, worker_id: str = "w1", capabilities: frozenset[Capability] = BOTH) -> WorkerCredits:
    return WorkerCredits(worker_id, HELD, 1, capabilities=capabilities, known_adapters=known)


def plan(*placements: AdapterPlacement, sequence: int = 1, there: tuple[str, ...] = ("c1", "c2", "c3")) -> Plan:
    endpoints = tuple(ServiceEndpoint(ReplicaKind.CONTROLNET, name, f"unix:/{name}") for name in there)
    return Plan(PlanVersion(1, sequence), endpoints=endpoints, placements=placements)


def known_adapters() -> AdapterCatalogue:
    """Return a catalogue of the adapters above; `gone` is on no replica."""
    catalogue = AdapterCatalogue()
    catalogue.learn(credits(NEON, MOSAIC, FOREIGN, STYLE))
    catalogue.follow(plan(AdapterPlacement(GONE, ("c1",))))
    there = {EDGES: ("c1", "c2"), LAYOUT: ("c3",), UNION: ("c3",)}
    catalogue.follow(plan(*(AdapterPlacement(adapter, places) for adapter, places in there.items()), sequence=2))
    return catalogue
