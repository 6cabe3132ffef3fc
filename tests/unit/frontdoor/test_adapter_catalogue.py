from dataclasses import replace

import pytest

from lab.fixtures.held_models import HELD
from pentimento.domain.adapters import Adapter, AdapterKind, RejectedAdapter
from pentimento.domain.components import GB, HeldComponent, Tier, TierSpeed
from pentimento.domain.execution import ControlNetEndpoint
from pentimento.domain.fleet import AdapterPlacement, Capability
from pentimento.domain.generation import ControlNetSelection, GenerationSpec, LoraSelection, ObjectReference, Scheduler
from services.frontdoor.workers.adapter_catalogue import AdapterCatalogue
from services.frontdoor.workers.worker_links import LinkAdapters
from tests.unit.frontdoor.adapters import BOTH, EDGES, FOREIGN, LAYOUT, MOSAIC, NEON, credits, known_adapters, plan

SPEC = GenerationSpec("a red circle", "", HELD.model, 32, 32, 50, 3.0, Scheduler.DDIM, 7)
SELECTED_NEON, SELECTED_MOSAIC = (LoraSelection(lora.name, 1.0, lora.digest) for lora in (NEON, MOSAIC))
OTHER = replace(HELD, model="other", model_digest="sha256:other")
SELECTED_EDGES = ControlNetSelection("edges", b"", digest=EDGES.digest)
SELECTED_LAYOUT = ControlNetSelection("layout", b"", digest=LAYOUT.digest)
UPLOADED = replace(MOSAIC, name="ink", digest="sha256:ink", object=ObjectReference("adapters/ink", "sha256:ink", 9))
SELECTED_INK = LoraSelection("ink", 1.0, "sha256:ink", UPLOADED.object)
STYLED, INKED = replace(SPEC, loras=(SELECTED_MOSAIC,)), replace(SPEC, loras=(SELECTED_INK,))


def test_find_newest_weights_of_a_name_first_and_eight_in_all() -> None:
    catalogue = known_adapters()
    newer = replace(NEON, digest="sha256:newer")
    catalogue.learn(credits(newer))
    assert catalogue.find(AdapterKind.LORA, "neon") == (NEON, newer)
    catalogue.learn(credits(NEON, worker_id="w2"))
    assert catalogue.find(AdapterKind.LORA, "neon") == (newer, NEON)

    for number in range(100):
        catalogue.learn(credits(replace(NEON, digest=f"sha256:{number}")))
    digests = [adapter.digest for adapter in catalogue.find(AdapterKind.LORA, "neon")]
    assert digests == [f"sha256:{number}" for number in range(92, 100)]


def test_offered_loras_are_of_workers_and_controlnets_of_the_plan() -> None:
    catalogue = AdapterCatalogue()
    catalogue.learn(credits(EDGES, NEON))
    catalogue.follow(plan(AdapterPlacement(NEON, ("w1",)), AdapterPlacement(LAYOUT, ("c3",))))
    assert [adapter.name for adapter in catalogue.offered()] == ["layout", "neon"]

    able = known_adapters()
    able.learn(credits(NEON, capabilities=frozenset({Capability.LORA})))
    assert [adapter.name for adapter in able.offered()] == ["foreign", "mosaic", "neon"]
    fetching = AdapterCatalogue()
    fetching.learn(credits(capabilities=frozenset({Capability.UPLOADED_LORA})))
    assert fetching.takes(AdapterKind.LORA) and not fetching.takes(AdapterKind.CONTROLNET)


def test_endpoints_are_of_selected_weights_in_the_plan() -> None:
    catalogue = known_adapters()
    assert catalogue.endpoints((replace(SELECTED_EDGES, digest="sha256:other"),)) == ()
    found = catalogue.endpoints((SELECTED_LAYOUT, SELECTED_LAYOUT))
    assert found == (ControlNetEndpoint("layout", "unix:/c3", LAYOUT.digest),)

    # Replicas that state another licence serve the same weights.
    told = replace(EDGES, licence="mit")
    catalogue.follow(plan(AdapterPlacement(EDGES, ("c1",)), AdapterPlacement(told, ("c2",), ("c2",)), sequence=3))
    assert [end.address for end in catalogue.endpoints((SELECTED_EDGES,))] == ["unix:/c2", "unix:/c1"]
    assert catalogue.find(AdapterKind.CONTROLNET, "edges") == (told,)
    catalogue.follow(plan(AdapterPlacement(EDGES, ("c1", "c2")), sequence=4, there=("c2",)))
    assert [end.address for end in catalogue.endpoints((SELECTED_EDGES,))] == ["unix:/c2"]
    assert not catalogue.is_reachable(LAYOUT)


def test_lora_patch_step_is_the_earliest_that_was_measured() -> None:
    catalogue = known_adapters()
    third = replace(HELD, model="third", model_digest="sha256:third")
    catalogue.learn(replace(credits(replace(MOSAIC, latest_start_fraction=0.1), worker_id="w2"), held=OTHER))
    catalogue.follow(plan(AdapterPlacement(UPLOADED, ())))

    for loras, held, step in (
        ((SELECTED_MOSAIC,), HELD, 25),
        ((SELECTED_MOSAIC,), OTHER, 5),
        ((SELECTED_MOSAIC,), third, 0),
        ((SELECTED_MOSAIC, SELECTED_NEON), HELD, 10),
        ((replace(SELECTED_MOSAIC, scale=-1.0),), HELD, 25),
        ((replace(SELECTED_MOSAIC, scale=1.1),), HELD, 0),
        ((), HELD, 0),
        ((replace(SELECTED_NEON, digest="sha256:x"),), HELD, 0),
        ((SELECTED_INK,), OTHER, 25),
    ):
        assert catalogue.lora_patch_step(replace(SPEC, loras=loras), held) == step, (loras, held.model)
    exact = AdapterCatalogue()
    exact.learn(credits(replace(MOSAIC, latest_start_fraction=29 / 50)))
    assert exact.lora_patch_step(STYLED, HELD) == 29


def test_uploaded_lora_is_offered_while_plans_name_it() -> None:
    catalogue = known_adapters()
    catalogue.follow(plan(AdapterPlacement(UPLOADED, ("w1",)), AdapterPlacement(NEON, ("w1",))))
    assert catalogue.find(AdapterKind.LORA, "ink") == (UPLOADED,)
    assert UPLOADED in catalogue.offered()

    catalogue.follow(plan(sequence=2))
    assert catalogue.find(AdapterKind.LORA, "ink") == ()
    assert UPLOADED not in catalogue.offered()
    # A worker's own LoRA stays, and requests under way keep the one that was removed.
    assert catalogue.find(AdapterKind.LORA, "neon") == (NEON,)
    assert catalogue.change(INKED, HELD)
    assert catalogue.lora_patch_step(INKED, HELD) == 25


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_lora_of_two_families_serves_both_in_any_order(order: tuple[int, int]) -> None:
    both = [Adapter("ink", AdapterKind.LORA, "sha256:ink", family) for family in (HELD.family, "stable_diffusion_3")]
    flow = replace(HELD, model="flow", model_digest="sha256:flow", family="stable_diffusion_3")
    catalogue = AdapterCatalogue()
    for turn in order:
        held = (HELD, flow)[turn]
        catalogue.learn(replace(credits(both[turn], worker_id=f"w{turn}"), held=held))
    spec = replace(SPEC, loras=(LoraSelection("ink", 1.0, "sha256:ink"),))

    assert catalogue.change(spec, HELD) and catalogue.change(spec, flow)
    assert set(catalogue.find(AdapterKind.LORA, "ink")) == set(both)
    assert set(catalogue.offered()) == set(both)


def test_rejected_lora_is_told_until_a_worker_has_it() -> None:
    rejected = RejectedAdapter("loha", AdapterKind.LORA, "UNSUPPORTED_LORA", "loha.safetensors: it is a LoHa")
    other = replace(rejected, message="of another model")
    catalogue = AdapterCatalogue()
    catalogue.learn(replace(credits(worker_id="w1"), rejected_adapters=(rejected,)))
    catalogue.learn(replace(credits(worker_id="w2"), held=OTHER, rejected_adapters=(other,)))
    # As told before.
    catalogue.learn(replace(credits(worker_id="w1"), known_adapters=None))

    assert catalogue.rejection(AdapterKind.LORA, "loha", HELD.model_digest) == rejected
    assert catalogue.rejection(AdapterKind.LORA, "loha", OTHER.model_digest) == other
    assert catalogue.rejection(AdapterKind.LORA, "none", HELD.model_digest) is None
    assert [one.name for one in catalogue.rejected] == ["loha"]
    catalogue.learn(credits(replace(NEON, name="loha"), worker_id="w2"))
    assert catalogue.rejected == ()


def test_a_controlnet_is_asked_of_replicas_that_hold_it_first_and_they_take_turns() -> None:
    catalogue = AdapterCatalogue()
    catalogue.follow(plan(AdapterPlacement(EDGES, ("c1", "c2", "c3"), ("c2", "c3"))))

    asked = [[end.address for end in catalogue.endpoints((SELECTED_EDGES,))] for _ in range(3)]

    assert all(addresses[2] == "unix:/c1" and len(set(addresses)) == 3 for addresses in asked)
    assert {addresses[0] for addresses in asked} == {"unix:/c2", "unix:/c3"}


def test_a_model_fits_where_every_adapter_is_made_for_it() -> None:
    catalogue = known_adapters()
    spec = replace(SPEC, loras=(SELECTED_MOSAIC, SELECTED_NEON), controlnets=(SELECTED_EDGES,))

    assert catalogue.change(spec, HELD)
    assert not catalogue.change(spec, replace(HELD, model_digest="sha256:other"))
    assert catalogue.change(replace(SPEC, loras=(SELECTED_MOSAIC,)), replace(HELD, model_digest="sha256:other"))
    foreign = replace(SPEC, loras=(LoraSelection("foreign", 1.0, FOREIGN.digest),))
    assert not catalogue.change(foreign, HELD)


def test_the_dataplane_hears_what_a_worker_has_when_it_changes() -> None:
    link = LinkAdapters()

    first = link.news(replace(credits(NEON, MOSAIC), resident_components=("tiny", "neon")))
    assert first is not None
    assert (first.capabilities, first.loras, first.resident) == (BOTH, {NEON.digest, MOSAIC.digest}, {NEON.digest})
    assert link.news(replace(credits(), known_adapters=None, resident_components=("neon",))) is None
    second = link.news(replace(credits(), known_adapters=None, resident_components=("mosaic",)))
    assert second is not None and second.resident == {MOSAIC.digest}
    assert second.loras == first.loras


def test_load_seconds_follow_reported_tiers_and_speeds() -> None:
    link = LinkAdapters()
    neon, ink = HeldComponent(NEON.digest, Tier.DISK, GB // 2), HeldComponent("sha256:ink", Tier.HOST, GB)
    speeds = (TierSpeed(Tier.DISK, 2.0), TierSpeed(Tier.STORE, 16.0))

    first = link.news(replace(credits(), component_changes=(neon, ink), all_components=True, tier_speeds=speeds))
    moved = link.news(replace(credits(), component_changes=(replace(ink, tier=Tier.DISK),)))
    gone = link.news(replace(credits(), component_changes=(replace(neon, tier=Tier.STORE),)))
    again = link.news(replace(credits(), component_changes=(neon,), all_components=True))

    # Nothing was measured of host memory.
    assert first is not None and (first.load_s, first.store_s_per_gb) == ({NEON.digest: 1.0}, 16.0)
    assert moved is not None and moved.load_s == {NEON.digest: 1.0, "sha256:ink": 2.0}
    assert gone is not None and gone.load_s == {"sha256:ink": 2.0}
    assert again is not None and again.load_s == {NEON.digest: 1.0}


def test_of_uploaded_loras_the_dataplane_hears_which_a_worker_has_fetched() -> None:
    link, catalogue = LinkAdapters(), known_adapters()
    catalogue.follow(plan(AdapterPlacement(UPLOADED, ("w1",))))
    told = replace(credits(NEON), resident_components=("ink",))

    fetched = link.news(told, catalogue.uploaded)

    assert fetched is not None
    assert (fetched.loras, fetched.resident) == ({NEON.digest}, {UPLOADED.digest})
    # One of its own directory has the name.
    own = link.news(replace(credits(NEON), resident_components=("neon",)), [replace(UPLOADED, name="neon")])
    assert own is not None and own.resident == {NEON.digest}
