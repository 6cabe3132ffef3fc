""""""

import asyncio
from dataclasses import replace

import pytest

from lab.fixtures.held_models import HELD
from pentimento.domain.adapters import Adapter, AdapterKind, RejectedAdapter
from pentimento.domain.components import GB, HeldComponent, Tier, TierSpeed
from pentimento.domain.demand import PoolDemand
from pentimento.domain.errors import NotFound, Unavailable
from pentimento.domain.execution import ControlNetEndpoint
from pentimento.domain.fleet import AdapterPlacement, Capability, RegisteredDigest, ReplicaReport
from pentimento.domain.generation import ControlNetSelection, GenerationSpec, LoraSelection, ObjectReference, Scheduler
from services.frontdoor.workers.catalogue import AdapterCatalogue, Catalogue
from services.frontdoor.workers.worker_links import LinkAdapters
from tests.support.logged import said_by
from tests.unit.frontdoor.adapters import BOTH, EDGES, FOREIGN, LAYOUT, MOSAIC, NEON, credits, known_adapters, plan


def test_every_model_is_awaited_before_first_worker() -> None:
    with pytest.raises(Unavailable) as caught:
        Catalogue("").find("tiny")

    assert caught.value.retry_after_ms is not None


def test_step_of_a_model_is_that_of_its_slowest_worker() -> None:
    catalogue = Catalogue("")
    for step_s in (0.5, 7.0, 0.5):
        catalogue.learn(replace(HELD, step_s=step_s))

    assert catalogue.find("tiny").step_s == 7.0
    catalogue.learn(replace(HELD, step_s=0.1, model_digest="sha256:newer", worker_generation=2))
    assert catalogue.find("tiny").step_s == 0.1


def test_an_unknown_name_is_not_found_and_echoed_no_further_than_needed() -> None:
    catalogue = Catalogue("")
    catalogue.learn(HELD)

    with pytest.raises(NotFound, match="model: must be one of tiny, got") as caught:
        catalogue.find("x" * 100_000)

    assert len(caught.value.message) < 200


def test_no_name_is_unknown_while_worker_is_awaited() -> None:
    catalogue = Catalogue("", worker_wait_s=30.0, monotonic=lambda: 100.0)
    catalogue.learn(HELD)
    catalogue.await_worker("w2")

    with pytest.raises(Unavailable) as caught:
        catalogue.find("x" * 100_000)

    assert (caught.value.reason, caught.value.retry_after_ms) == ("MODEL_NOT_LOADED", 1000)
    assert len(caught.value.message) < 200


def test_name_is_unknown_after_all_workers_or_their_wait() -> None:
    now = [100.0]
    catalogue = Catalogue("", worker_wait_s=30.0, monotonic=lambda: now[0])
    catalogue.learn(HELD)

    catalogue.await_worker("w2")
    catalogue.await_no_longer("w2")
    with pytest.raises(NotFound):
        catalogue.find("another")

    catalogue.await_worker("w3")
    now[0] += 30.0
    with pytest.raises(NotFound):
        catalogue.find("another")


@pytest.mark.parametrize(("default", "found"), [("", "another"), ("tiny", "tiny")])
def test_no_name_means_the_deployments_default_or_the_first(default: str, found: str) -> None:
    catalogue = Catalogue(default)
    catalogue.learn(HELD)
    catalogue.learn(replace(HELD, model="another"))

    assert catalogue.find("").model == found


def test_later_start_of_two_weights_counts_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    catalogue = Catalogue("", monotonic=lambda: now[0])
    older, newer = (replace(HELD, model_digest=f"sha256:{word}", worker_generation=n) for n, word in enumerate("on"))

    for held in (older, newer, older, newer, older):
        catalogue.learn(held)
        now[0] += 1.0

    assert catalogue.find("tiny") == newer
    (told,) = said_by("services.frontdoor.workers.catalogue", caplog)
    assert told.levelname == "ERROR" and "different weights under one model name" in told.message
    assert (told.model, told.used, told.not_used) == ("tiny", "sha256:n", "sha256:o")  # type: ignore[attr-defined]


def test_weights_of_silent_workers_give_way_to_older_start() -> None:
    now = [100.0]
    catalogue = Catalogue("", monotonic=lambda: now[0])
    older, newer = (replace(HELD, model_digest=f"sha256:{word}", worker_generation=n) for n, word in enumerate("on"))
    catalogue.learn(newer)

    now[0] += 9.0
    catalogue.learn(older)
    assert catalogue.find("tiny") == newer
    now[0] += 1.0
    catalogue.learn(older)

    assert catalogue.find("tiny") == older


async def test_a_model_can_be_waited_for() -> None:
    catalogue = Catalogue("")
    waiting = asyncio.ensure_future(catalogue.wait_for("tiny"))
    catalogue.learn(replace(HELD, model="another"))

    catalogue.learn(HELD)

    assert await waiting == HELD


def test_the_list_counts_ready_workers() -> None:
    catalogue = Catalogue("")
    catalogue.learn(HELD)

    (info,) = catalogue.infos(lambda held: 3)

    assert (info.name, info.max_size_px, info.ready_worker_count) == ("tiny", 64, 3)


def test_registered_name_accepts_its_digest_only() -> None:
    catalogue = Catalogue("")
    wrong, right = replace(HELD, model_digest="sha256:wrong", worker_generation=2), HELD
    catalogue.learn(wrong)

    catalogue.follow([RegisteredDigest(HELD.model, HELD.model_digest)])
    assert catalogue.known(HELD.model) is None

    for held in (right, wrong):
        catalogue.learn(held)
    assert catalogue.find(HELD.model) == right

    catalogue.follow([])
    catalogue.learn(wrong)
    assert catalogue.find(HELD.model) == wrong


@pytest.mark.parametrize(("default", "name"), [("", "tiny"), ("tiny", "")])
async def test_call_waits_for_planned_or_default_model_and_asks_for_it(default: str, name: str) -> None:
    catalogue = Catalogue(default)
    catalogue.follow((), ("tiny", "other"))
    report = ReplicaReport("f", 1)

    waiting = asyncio.ensure_future(catalogue.wait_until_loaded(name, 30.0))
    await asyncio.sleep(0)
    assert catalogue.added_to(report).demand == (PoolDemand("tiny", queue_length=1),)
    catalogue.learn(HELD)
    await waiting

    assert catalogue.added_to(report) == report


@pytest.mark.parametrize(("name", "timeout_s"), [("tiny", 30.0), ("strange", 30.0), ("other", 0.0)])
async def test_call_waits_only_for_planned_unknown_models(name: str, timeout_s: float) -> None:
    catalogue = Catalogue("")
    catalogue.follow((), ("tiny", "other"))
    catalogue.learn(HELD)

    async with asyncio.timeout(5.0):
        await catalogue.wait_until_loaded(name, timeout_s)

    assert not catalogue.wanted.total()


async def test_calls_beyond_the_limit_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.frontdoor.workers.catalogue.MOST_WAITING", 1)
    catalogue = Catalogue("")
    catalogue.follow((), ("tiny",))
    waiting = asyncio.ensure_future(catalogue.wait_until_loaded("tiny", 30.0))
    await asyncio.sleep(0)

    async with asyncio.timeout(5.0):
        await catalogue.wait_until_loaded("tiny", 30.0)

    waiting.cancel()


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
    # A worker's own LoRA stays, and running requests keep the removed one.
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


def test_rejected_lora_is_reported_until_worker_has_it() -> None:
    rejected = RejectedAdapter("loha", AdapterKind.LORA, "UNSUPPORTED_LORA", "loha.safetensors: it is a LoHa")
    other = replace(rejected, message="of another model")
    catalogue = AdapterCatalogue()
    catalogue.learn(replace(credits(worker_id="w1"), rejected_adapters=(rejected,)))
    catalogue.learn(replace(credits(worker_id="w2"), held=OTHER, rejected_adapters=(other,)))
    # As reported before.
    catalogue.learn(replace(credits(worker_id="w1"), known_adapters=None))

    assert catalogue.rejection(AdapterKind.LORA, "loha", HELD.model_digest) == rejected
    assert catalogue.rejection(AdapterKind.LORA, "loha", OTHER.model_digest) == other
    assert catalogue.rejection(AdapterKind.LORA, "none", HELD.model_digest) is None
    assert [one.name for one in catalogue.rejected] == ["loha"]
    catalogue.learn(credits(replace(NEON, name="loha"), worker_id="w2"))
    assert catalogue.rejected == ()


def test_controlnet_replicas_that_hold_it_come_first_in_turns() -> None:
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


def test_dataplane_receives_changed_adapters_of_worker() -> None:
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


def test_dataplane_receives_fetched_uploaded_loras() -> None:
    link, catalogue = LinkAdapters(), known_adapters()
    catalogue.follow(plan(AdapterPlacement(UPLOADED, ("w1",))))
    told = replace(credits(NEON), resident_components=("ink",))

    fetched = link.news(told, catalogue.uploaded)

    assert fetched is not None
    assert (fetched.loras, fetched.resident) == ({NEON.digest}, {UPLOADED.digest})
    # A LoRA in the worker's directory has the name.
    own = link.news(replace(credits(NEON), resident_components=("neon",)), [replace(UPLOADED, name="neon")])
    assert own is not None and own.resident == {NEON.digest}
