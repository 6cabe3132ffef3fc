"""Test a plan's decisions in a running frontdoor: pools by start, spare workers, models not loaded yet."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.cascade import CascadeParts, FixedDiscriminator, running_parts
from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite, settings_of, until
from lab.fixtures.held_models import HELD
from lab.fixtures.paced_worker import PacedWorker
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.execution import AttemptResult
from pentimento.domain.fleet import (
    CachePlan,
    CascadePlan,
    Plan,
    PoolPlan,
    RegisteredDigest,
    RouteShare,
    StagePlan,
    StartThreshold,
    WorkerAssignment,
)
from pentimento.domain.generation import (
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    InitImage,
    NoiseForm,
    ObjectReference,
    PlanVersion,
    Provenance,
    Start,
)
from pentimento.domain.image_request import AskedLora, CacheMode, Completed, ImageRequest
from pentimento.policies.plan.entry import EVERY_START, every_start
from pentimento.policies.plan.mixture import HITS, SPARING
from pentimento.stores.ledger import open_journal
from pentimento.stores.objects.store import digest_of
from pentimento.wire.codec import to_bytes
from services.frontdoor.requests.pins import Pins
from tests.integration.frontdoor.cache_parts import ChosenEmbedder, ChosenGateway, serve_cache

UNNAMED = ImageRequest(prompt="a red circle", seed=1)
DONOR = Donor("entry", "sha256:1", 0.91)
# Half of the heavy model's four steps.
IMAGE = FromImage(ObjectReference("images/x", "sha256:0", 2048), 2, NoiseForm.VARIANCE_PRESERVING, DONOR)
LATENT = FromLatent(ObjectReference("latents/x", "sha256:0", 2048), 2, 4, 4.5, DONOR)
MIXTURE = (PoolPlan("heavy", "heavy", ("w2",), routes=SPARING), PoolPlan("light", "light", ("w1",), routes=HITS))
CASCADED = (PoolPlan("light", "light", ("w1",), every_start("c")), PoolPlan("heavy", "heavy", ("w2",)))
EVERYTHING = CachePlan()


def cascade(light: str, heavy: str, **thresholds: float) -> CascadePlan:
    scored = tuple(StartThreshold(start, confidence) for start, confidence in thresholds.items())
    return CascadePlan("c", (StagePlan(light, scored), StagePlan(heavy)))


@dataclass(frozen=True)
class Planned:
    suite: FrontdoorSuite
    light: PacedWorker
    heavy: PacedWorker
    discriminator: FixedDiscriminator


@asynccontextmanager
async def planned_parts(
    folder: Path,
    pools: Sequence[PoolPlan],
    start: Start | None = None,
    cascades: tuple[CascadePlan, ...] = (),
    cache: CachePlan = EVERYTHING,
    gateway: ChosenGateway | None = None,
) -> AsyncIterator[tuple[CascadeParts, dict[str, Any]]]:
    """Yield a light and a heavy worker, a cache with lookups that answer `start`, and the settings of frontdoors over
    them; the plan is in the journal."""
    assignments = tuple(WorkerAssignment(name, f"unix:{folder / name}", "", 1) for name in ("w1", "w2"))
    journal = open_journal(settings_of(folder).ledger_url)
    plan = Plan(PlanVersion(1, 1), assignments, tuple(pools), cascades=cascades, cache=cache)
    journal.save_plan(to_bytes(plan, controller_pb.Plan)).result()
    journal.close()
    gateway = gateway or ChosenGateway()
    gateway.start = start or gateway.start
    address = f"unix:{folder / 'c'}"
    served = await serve_cache(ChosenEmbedder(), gateway, address)
    async with running_parts(folder, 0.9) as parts:
        yield parts, parts.settings | {"cascade": (), "embedder_address": (address,), "gateway_address": address}
    await served.stop()


@asynccontextmanager
async def planned(
    folder: Path,
    pools: Sequence[PoolPlan],
    start: Start | None = None,
    cascades: tuple[CascadePlan, ...] = (),
    cache: CachePlan = EVERYTHING,
    gateway: ChosenGateway | None = None,
    **changes: Any,
) -> AsyncIterator[Planned]:
    """Run a frontdoor with these parts."""
    async with (
        planned_parts(folder, pools, start, cascades, cache, gateway) as (parts, settings),
        running_suite(folder, **(settings | changes)) as suite,
    ):
        await suite.wait_for_workers(2)
        yield Planned(suite, parts.light, parts.heavy, parts.discriminator)


@pytest.mark.parametrize(
    ("start", "model", "steps", "started"),
    [
        (IMAGE, "light", 2, replace(IMAGE, start_step=1)),
        (LATENT, "heavy", 4, LATENT),
        (replace(IMAGE, start_step=1), "heavy", 4, replace(IMAGE, start_step=1)),
    ],
    ids=["same share of the light model's steps", "a latent is its model's own", "too few steps at the light model"],
)
async def test_hit_goes_to_pool_that_can_use_it(
    folder: Path, start: Start, model: str, steps: int, started: Start
) -> None:
    async with planned(folder, MIXTURE, start) as run:
        provenance = (await run.suite.paint(UNNAMED)).provenance

    assert (provenance.model_digest, provenance.spec.model) == (f"sha256:{model}", model)
    assert (provenance.spec.num_inference_steps, provenance.route.start) == (steps, started)


@pytest.mark.parametrize("pools", [MIXTURE, CASCADED], ids=["of misses", "of a cascade's last stage"])
async def test_lookup_names_model_that_generates_from_noise(folder: Path, pools: Sequence[PoolPlan]) -> None:
    gateway, cascades = ChosenGateway(), (cascade("light", "heavy", noise=0.95),)
    async with planned(folder, pools, IMAGE, cascades, gateway=gateway) as run:
        await run.suite.paint(UNNAMED)

    asked = [candidate for lookup in gateway.lookups for candidate in lookup.candidates]
    assert "sha256:light" in {one.scope.model_digest for one in asked}
    assert {one.reference_model_digest for one in asked} == {"sha256:heavy"}


async def test_latest_lora_step_follows_the_running_model(folder: Path) -> None:
    """The LoRA may start after half of the schedule: of the light model's two steps, or of the heavy model's four."""
    mosaic = Adapter("mosaic", AdapterKind.LORA, "sha256:mosaic", HELD.family, latest_start_fraction=0.5)
    asked = replace(UNNAMED, loras=(AskedLora("mosaic"),))
    async with planned(folder, MIXTURE, IMAGE) as run:
        for worker in (run.light, run.heavy):
            worker.known_adapters = (mosaic,)
            worker.change()
        workers = run.suite.frontdoor.interpreter.dataplane.state.workers
        await until(lambda: all(mosaic.digest in worker.holdings.loras for worker in workers.values()))
        run.light.hold.clear()
        hit = asyncio.ensure_future(run.suite.paint(asked))
        await run.light.wait_until(lambda: run.light.running)
        await run.suite.paint(replace(asked, seed=2))
        run.light.hold.set()
        await hit

    assert [order.route.lora_patch_step for order in (*run.light.orders, *run.heavy.orders)] == [1, 2]


async def test_idle_large_worker_takes_waiting_hit(folder: Path) -> None:
    async with planned(folder, MIXTURE, IMAGE) as run:
        run.light.hold.clear()
        first = asyncio.ensure_future(run.suite.paint(UNNAMED))
        await run.light.wait_until(lambda: run.light.running)

        spared = (await run.suite.paint(replace(UNNAMED, seed=2))).provenance

        run.light.hold.set()
        assert (await first).provenance.model_digest == "sha256:light"
    assert (spared.model_digest, spared.route.model, spared.route.start) == ("sha256:heavy", "heavy", IMAGE)


@pytest.mark.parametrize(("named", "own"), [("light", ()), ("", ("light",))], ids=["named", "a cascade of one model"])
async def test_pool_with_other_name_takes_requests_of_its_model(folder: Path, named: str, own: tuple[str, ...]) -> None:
    pools = (PoolPlan("misses", "heavy", ("w2",)), PoolPlan("hits", "light", ("w1",)))
    async with planned(folder, pools, cascade=own) as run:
        asking = replace(UNNAMED, model=named, cache=CacheMode.OFF, deadline_ms=10_000)
        provenance = (await run.suite.paint(asking)).provenance

    assert provenance.model_digest == "sha256:light"


async def test_planned_model_replaces_default_steps_by_its_own(
    folder: Path,
) -> None:
    pools = (PoolPlan("light", "light", ("w1",), routes=EVERY_START),)
    asking = replace(UNNAMED, num_inference_steps=3)
    async with planned(folder, pools, cascade=("heavy",)) as run:
        unnamed = (await run.suite.paint(asking)).provenance
        named = (await run.suite.paint(replace(asking, model="light"))).provenance

    assert [(made.spec.model, made.spec.num_inference_steps) for made in (unnamed, named)] == [
        ("light", 2),
        ("light", 3),
    ]


async def test_cascade_ends_at_last_loaded_model(folder: Path) -> None:
    pools = (PoolPlan("light", "light", ("w1",), every_start("c")), PoolPlan("larger", "larger", ("w2",)))
    async with planned(folder, pools, cascades=(cascade("light", "larger", noise=0.95),)) as run:
        completed = await run.suite.paint(UNNAMED)

    assert (completed.provenance.model_digest, completed.provenance.route.stages) == ("sha256:light", ())


@pytest.mark.parametrize("named", ["", "larger"])
async def test_unloaded_planned_model_error_is_retryable(folder: Path, named: str) -> None:
    pools = (PoolPlan("larger", "larger", ("w2",), routes=(RouteShare("noise", 1.0),)),)
    async with planned(folder, pools) as run:
        with pytest.raises(Unavailable, match=r"no worker has loaded '?larger'? yet") as refused:
            # A call for a planned model waits for it until its deadline.
            await run.suite.paint(replace(UNNAMED, model=named, deadline_ms=100))

    assert (refused.value.reason, refused.value.retry_after_ms) == ("MODEL_NOT_LOADED", 1000)


@pytest.mark.parametrize(
    ("thresholds", "painted"), [({"noise": 0.95}, "light"), ({"noise": 0.95, "image": 0.95}, "heavy")]
)
async def test_refined_hit_is_scored_with_a_planned_threshold(
    folder: Path, thresholds: dict[str, float], painted: str
) -> None:
    """The discriminator says 0.9."""
    pools = (PoolPlan("light", "light", ("w1",), every_start("c")), PoolPlan("heavy", "heavy", ("w2",)))
    async with planned(folder, pools, IMAGE, (cascade("light", "heavy", **thresholds),)) as run:
        provenance = (await run.suite.paint(UNNAMED)).provenance

    assert provenance.spec.model == painted
    assert [stage.pool for stage in provenance.route.stages] == ["light", "heavy"]


@pytest.mark.parametrize(
    ("share", "asked", "strength"),
    [(0.5, {}, 0.5), (0.0, {}, None), (0.5, {"quality": 0.9}, None), (0.5, {"pin_ms": 60_000}, None)],
)
async def test_heavy_stage_starts_from_light_image_by_planned_share(
    folder: Path, share: float, asked: dict[str, Any], strength: float | None
) -> None:
    """The light image replaces two of the heavy model's four steps, except for requests with a quality or a pin."""
    pools = (PoolPlan("light", "light", ("w1",), every_start("c")), PoolPlan("heavy", "heavy", ("w2",)))
    known = cascade("light", "heavy", noise=0.95)
    reusing = replace(known, stages=(replace(known.stages[0], reuse_share=share), known.stages[1]))
    async with planned(folder, pools, FromNoise(), (reusing,)) as run:
        provenance = (await run.suite.paint(replace(UNNAMED, cache=CacheMode.OFF, **asked))).provenance

    light, heavy = run.light.finished, run.heavy.executed[0]
    assert provenance.spec.model == "heavy"
    if strength is None:
        assert (heavy.init_image, provenance.inputs) == (None, ())
        return
    (picture,) = (one.outcome.image for one in light.values() if isinstance(one.outcome, AttemptResult))
    assert heavy.init_image is not None
    assert (heavy.init_image.image, heavy.init_image.strength) == (picture, pytest.approx(strength, abs=1e-5))
    assert [(part.field, part.object.digest) for part in provenance.inputs] == [
        ("init_image.image", digest_of(picture))
    ]
    assert "heavy started from the image of light: 2 steps" in provenance.notes


REUSING = replace(
    cascade("light", "heavy", noise=0.95),
    stages=(replace(cascade("light", "heavy", noise=0.95).stages[0], reuse_share=0.5), StagePlan("heavy")),
)


async def provenance_after_restarts(folder: Path, *, reruns: bool) -> tuple[Provenance, CascadeParts]:
    """Return the provenance of a request with a heavy stage started from the light image before its frontdoor ended.
    With `reruns`, that attempt is lost, and the next frontdoor also ends, during another attempt."""
    pools = (PoolPlan("light", "light", ("w1",), every_start("c")), PoolPlan("heavy", "heavy", ("w2",)))
    async with planned_parts(folder, pools, FromNoise(), (REUSING,)) as (parts, settings):
        heavy = parts.heavy
        heavy.hold.clear()
        async with running_suite(folder, **settings) as suite:
            await suite.wait_for_workers(2)
            stream = suite.client.generate(replace(UNNAMED, cache=CacheMode.OFF))
            request_id = await suite.accepted(stream)
            await heavy.wait_until(lambda: heavy.running)
        if reruns:
            heavy.running.clear()
            async with running_suite(folder, **settings):
                await heavy.wait_until(lambda: heavy.running)
        async with running_suite(folder, **settings) as suite:
            heavy.hold.set()
            async for event in suite.client.attach(request_id):
                if isinstance(event, Completed):
                    return event.provenance, parts
    raise AssertionError("it ended without a picture")


async def test_start_from_light_image_is_recorded_after_restart(folder: Path) -> None:
    provenance, parts = await provenance_after_restarts(folder, reruns=False)

    (picture,) = (one.outcome.image for one in parts.light.finished.values() if isinstance(one.outcome, AttemptResult))
    assert len(parts.heavy.executed) == 1
    assert [(part.field, part.object.digest) for part in provenance.inputs] == [
        ("init_image.image", digest_of(picture))
    ]
    assert provenance.spec.init_image == InitImage(b"", pytest.approx(0.5, abs=1e-5))


@pytest.mark.parametrize(("digest", "painted"), [("sha256:d", "heavy"), ("sha256:other", "light")])
async def test_recovered_light_stage_keeps_its_plan(folder: Path, digest: str, painted: str) -> None:
    """The heavy stage starts from the light image, and only the plan's discriminator may reject it."""
    pools = (PoolPlan("light", "light", ("w1",), every_start("c")), PoolPlan("heavy", "heavy", ("w2",)))
    meant = replace(REUSING.stages[0], discriminator_digest="sha256:d")
    reusing = replace(REUSING, stages=(meant, REUSING.stages[1]))
    async with planned_parts(folder, pools, FromNoise(), (reusing,)) as (parts, settings):
        parts.discriminator.digest = digest
        parts.light.hold.clear()
        async with running_suite(folder, **settings) as suite:
            await suite.wait_for_workers(2)
            stream = suite.client.generate(replace(UNNAMED, cache=CacheMode.OFF))
            request_id = await suite.accepted(stream)
            await parts.light.wait_until(lambda: parts.light.running)
        async with running_suite(folder, **settings) as suite:
            await suite.wait_for_workers(2)
            parts.light.hold.set()
            (ended,) = [event async for event in suite.client.attach(request_id) if isinstance(event, Completed)]

    assert ended.provenance.spec.model == painted
    assert [spec.init_image is not None for spec in parts.heavy.executed] == [True] * (painted == "heavy")


async def test_rerun_without_light_image_is_recorded_after_restart(folder: Path) -> None:
    provenance, parts = await provenance_after_restarts(folder, reruns=True)

    assert [spec.init_image is not None for spec in parts.heavy.executed] == [True, False]
    assert (provenance.spec.init_image, provenance.inputs) == (None, ())


@pytest.mark.parametrize(("answers", "painted"), [("sha256:meant", "heavy"), ("sha256:other", "light")])
async def test_score_of_other_discriminator_is_ignored(folder: Path, answers: str, painted: str) -> None:
    """With 0.9 under a threshold of 0.95 the light image is rejected; without a score it is accepted."""
    pools = (PoolPlan("light", "light", ("w1",), every_start("c")), PoolPlan("heavy", "heavy", ("w2",)))
    known = cascade("light", "heavy", noise=0.95)
    meant = replace(known, stages=(replace(known.stages[0], discriminator_digest="sha256:meant"), known.stages[1]))
    async with planned(folder, pools, FromNoise(), (meant,)) as run:
        run.discriminator.digest = answers
        provenance = (await run.suite.paint(replace(UNNAMED, cache=CacheMode.OFF))).provenance

    assert provenance.spec.model == painted
    assert ("degraded: UNSCORED" in provenance.notes) is (painted == "light")


async def test_model_removed_during_validation_leaves_no_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its tenant would permanently lose a place for a request, and its inputs would stay in memory."""
    async with planned(folder, (PoolPlan("light", "light", ("w1",)),)) as run:
        frontdoor = run.suite.frontdoor

        async def another_is_registered(*of: object) -> None:
            frontdoor.fleet.catalogue.follow([RegisteredDigest("light", "sha256:other")])

        monkeypatch.setattr(Pins, "check_room", another_is_registered)
        with pytest.raises(PentimentoError):
            await run.suite.paint(replace(UNNAMED, model="light", pin_ms=60_000))

    assert len(frontdoor.jobs) == 0
    assert frontdoor.jobs.count_of("default") == 0


async def test_misses_and_hits_use_different_cascades(folder: Path) -> None:
    """Misses use only the heavy model. The light model refines hits; insufficient images are deferred."""
    pools = (
        PoolPlan("heavy", "heavy", ("w2",), (RouteShare("noise", 1.0),)),
        PoolPlan("light", "light", ("w1",), (RouteShare("image", 1.0, "c"),)),
    )
    async with planned(folder, pools, IMAGE, (cascade("light", "heavy", image=0.95),)) as run:
        provenance = (await run.suite.paint(UNNAMED)).provenance

    assert (provenance.spec.model, provenance.route.cascade) == ("heavy", "c")
    assert (len(run.light.orders), len(run.heavy.orders)) == (1, 1)
