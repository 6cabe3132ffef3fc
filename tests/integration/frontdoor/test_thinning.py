"""Test skipped steps under load with a real frontdoor and a real worker with a tiny model's weights."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite, until
from pentimento.domain.image_request import Completed, ImageRequest, ReplayRequest
from pentimento.policies.thinning import ThinningMode
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import ProfileKind, ProfileRow, profiles_to_json
from pentimento.profiles.rules import ThresholdRule
from pentimento.rpc import watched_file
from pentimento.supervisor.models import THINNING_PROFILES, find_model
from services.frontdoor.workers import attempts
from services.unet_worker.attempts.attempt_book import AttemptBook
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.attempts.runner import AttemptRunner
from tests.integration.unet_worker.conftest import at_step, serve
from tests.support.profiles import changed, thinned_row

PLAIN = ImageRequest("a small yellow cross")
LIMIT_S = 60.0


async def test_images_under_load_skip_permitted_steps_and_replay_equal(folder: Path) -> None:
    write_profile(folder / "half.json", thinned_row(1, 6, ThresholdRule.LOWER_BOUND))
    async with thinning_suite(folder, folder / "half.json") as suite:
        alone = await suite.paint(PLAIN)
        told = [await suite.client.explain(one) for one in (PLAIN, ImageRequest(PLAIN.prompt, num_inference_steps=12))]
        asked = [ImageRequest(PLAIN.prompt, seed=seed) for seed in range(5)]
        binding = ImageRequest(PLAIN.prompt, seed=9, binding_steps=True)
        *many, bound = await asyncio.gather(*(suite.paint(one) for one in [*asked, binding]))
        thinned = next(one for one in many if one.provenance.route.thinned_steps)
        *_, again = [event async for event in suite.client.replay(ReplayRequest(thinned.request_id))]

    allowed, meant = (next(why for why in one.reasons if why.startswith("steps: ")) for one in told)
    assert allowed == "steps: all run, ENOUGH_TIME: the deadline allows all; 7 of 12 would be allowed"
    assert meant == "steps: all run, BINDING_STEPS: its number of steps is binding"
    assert (alone.provenance.steps_run, alone.provenance.route.thinned_steps) == (12, ())
    assert (bound.provenance.steps_run, bound.provenance.route.thinned_steps) == (12, ())
    # Of twelve steps, the first one, and six of the other eleven.
    assert thinned.provenance.route.thinned_steps == (1, 2, 4, 6, 8, 10)
    assert thinned.provenance.steps_run == 7
    assert "steps left out: from step 1 on 6 of 11 were taken" in thinned.provenance.notes
    assert isinstance(again, Completed)
    assert again.image == thinned.image and again.provenance.replay_equal
    assert again.provenance.route.thinned_steps == thinned.provenance.route.thinned_steps


async def test_running_frontdoor_loads_new_thinning_profile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)
    (profiles := folder / "profiles").mkdir()
    async with thinning_suite(folder, profiles, ThinningMode.ALWAYS) as suite:
        before = await suite.paint(PLAIN)
        write_profile(profiles / "half.json", thinned_row(1, 6, ThresholdRule.LOWER_BOUND))
        after = await suite.paint(PLAIN)

    assert (before.provenance.steps_run, after.provenance.steps_run) == (12, 7)


async def test_running_image_is_thinned_when_others_wait_and_replays_equal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first every step runs. Other requests arrive at the second step, and steps after the sixth are skipped."""
    write_profile(folder / "late.json", thinned_row(6, 2, ThresholdRule.LOWER_BOUND))
    asked, thin = threading.Event(), AttemptBook.thin

    def seen(book: AttemptBook, request_id: str, token: int, steps: tuple[int, ...]) -> bool:
        found = thin(book, request_id, token, steps)
        asked.set()
        return found

    monkeypatch.setattr(AttemptBook, "thin", seen)
    # Report each step: this worker waits at the third, and its report would otherwise wait for a later step.
    monkeypatch.setattr(attempts, "PROGRESS_INTERVAL_S", 0.0)
    async with thinning_suite(folder, folder / "late.json") as suite:
        loop, others = asyncio.get_running_loop(), list[asyncio.Task[Completed]]()

        async def come() -> None:
            others.extend(asyncio.create_task(suite.paint(ImageRequest(PLAIN.prompt, seed=seed))) for seed in range(3))
            pools = suite.frontdoor.interpreter.dataplane.state.pools
            await until(lambda: sum(pool.waiting_count for pool in pools.values()) == len(others))

        def crowd() -> None:
            asyncio.run_coroutine_threadsafe(come(), loop).result(LIMIT_S)

        with at_step(2, crowd), at_step(3, lambda: asked.wait(LIMIT_S)):
            first = await suite.paint(PLAIN)
        await asyncio.gather(*others)
        *_, again = [event async for event in suite.client.replay(ReplayRequest(first.request_id))]

    assert asked.is_set()
    assert first.provenance.route.thinned_steps == (6, 9)
    assert first.provenance.steps_run == 8
    assert isinstance(again, Completed)
    assert again.image == first.image and again.provenance.replay_equal


@pytest.mark.parametrize(("share", "is_cached"), [(0.99, True), (0.98, False)])
async def test_always_thins_without_load_and_caches_by_share(
    folder: Path, monkeypatch: pytest.MonkeyPatch, share: float, is_cached: bool
) -> None:
    orders, run = list[ExecuteOrder](), AttemptRunner.run

    def seen(runner: AttemptRunner, order: ExecuteOrder, emit: Any) -> Any:
        orders.append(order)
        return run(runner, order, emit)

    monkeypatch.setattr(AttemptRunner, "run", seen)
    write_profile(folder / "half.json", thinned_row(1, 6, ThresholdRule.LOWER_BOUND, share=share))
    async with thinning_suite(folder, folder / "half.json", ThinningMode.ALWAYS) as suite:
        alone = await suite.paint(PLAIN)
        explained = await suite.client.explain(PLAIN)

    assert alone.provenance.route.thinned_steps == (1, 2, 4, 6, 8, 10)
    assert "steps: 7 of 12 run, ALWAYS: by the settings; 7 of 12 would be allowed" in explained.reasons
    assert [order.cache_thinned_picture for order in orders if order.route.thinned_steps] == [is_cached]


async def test_features_are_reused_unless_refused_and_replayed(folder: Path) -> None:
    row = thinned_row(1, 4, ThresholdRule.LOWER_BOUND)
    write_profile(folder / "features.json", row, ProfileKind.FEATURES)
    async with thinning_suite(folder, folder / "features.json") as suite:
        plain = await suite.paint(replace(PLAIN, seed=5, feature_reuse=False))
        unasked = replace(PLAIN, seed=5)
        reused = await suite.paint(unasked)
        (told,) = (why for why in (await suite.client.explain(unasked)).reasons if why.startswith("features: "))
        *_, again = [event async for event in suite.client.replay(ReplayRequest(reused.request_id))]

        held = suite.frontdoor.fleet.catalogue.find("tiny")

    assert 0.0 < held.reused_step_share <= 1.0
    assert plain.provenance.route.full_steps == ()
    assert reused.provenance.route.full_steps == (1, 3, 6, 9)
    assert reused.provenance.steps_run == 12 and "deep features reused in 7 of 12 steps" in reused.provenance.notes
    assert told == "features: reused from step 1 on, where 4 of 11 steps run the whole network"
    assert reused.image != plain.image
    assert isinstance(again, Completed) and again.image == reused.image and again.provenance.replay_equal


@asynccontextmanager
async def thinning_suite(
    folder: Path, profile: Path, mode: ThinningMode = ThinningMode.LOAD
) -> AsyncIterator[FrontdoorSuite]:
    """Run a frontdoor that thins by the profile, and a worker of tiny-light with batches of one."""
    async with (
        serve(find_model("tiny-light").path, folder, max_batch=1, profiles=(profile,)),
        running_suite(
            folder,
            worker_addresses=(f"unix:{folder / 'w'}",),
            thinning=mode,
            profiles=(profile,),
        ) as suite,
    ):
        yield suite


def write_profile(path: Path, row: ProfileRow, kind: ProfileKind = ProfileKind.STEPS) -> None:
    """Return a profile of the shipped tiny-light that allows only this."""
    profiles = read_profiles([THINNING_PROFILES]).of(ProfileKind.STEPS)
    (shipped,) = (one for one in profiles if one.of.model == "tiny-light")
    path.write_text(profiles_to_json(changed(shipped, kind=kind, rule=ThresholdRule.LOWER_BOUND, rows=(row,))))
