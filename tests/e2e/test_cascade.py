"""A real cascade: the light model paints, the discriminator scores, the heavy one paints what was doubted."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from pentimento.clients.controller import ControllerClient
from pentimento.devices.profile import NOTHING, BatchProfile, ModelProfile, SizeProfile, profile_to_json, steady
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.domain.fleet import Plan
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.pictures.decoding import decode
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.models import WEIGHTS

THRESHOLD = 0.5
GUARD_S = 120.0
PROMPTS = [
    f"{size} {thing}" for size in ("a small", "a large") for thing in ("red circle", "blue star", "green square")
]


@pytest.fixture
def suite() -> Iterator[LocalSuite]:
    with local_suite(["--cascade", "tiny-light,tiny-heavy", "--confidence-threshold", str(THRESHOLD)]) as running:
        yield running


def asking(prompt: str, seed: int, model: str = "") -> ImageRequest:
    return ImageRequest(prompt, model=model, seed=seed, cache=CacheMode.OFF)


async def test_what_the_discriminator_doubts_is_painted_by_the_heavy_model(suite: LocalSuite) -> None:
    discriminator = open_discriminator(WEIGHTS / "tiny-discriminator")
    async with AsyncClient(suite.endpoint.public) as client:
        for seed, prompt in enumerate(PROMPTS):
            light = await client.generate(asking(prompt, seed, "tiny-light"))
            confidence = discriminator.confidences([decode(light.data, "image", discriminator.pixels)])[0]

            answer = await client.generate(asking(prompt, seed))

            doubted = confidence < THRESHOLD
            assert [stage.model for stage in answer.provenance.route.stages] == ["tiny-light", "tiny-heavy"]
            assert answer.provenance.spec.model == ("tiny-heavy" if doubted else "tiny-light")
            if not doubted:
                assert answer.provenance.discriminator_confidence == pytest.approx(confidence, abs=1e-4)


async def test_a_prompt_that_is_sure_to_be_hard_skips_the_light_model() -> None:
    """Told by a real head of a real embedding; the shipped head's probabilities of both are far from the bound."""
    flags = ["--cascade", "tiny-light,tiny-heavy", "--discriminator", "tiny-router", "--confidence-threshold", "0.45"]
    bound = {"PENTIMENTO_FRONTDOOR_SKIP_LIGHT_BELOW": "0.4", "PENTIMENTO_FRONTDOOR_FORESEE_TIMEOUT_MS": "20000"}
    hard, easy = "a small red circle above a large blue square on a yellow background", "a large red circle"
    with local_suite(flags, environment=bound) as running:
        async with AsyncClient(running.endpoint.public) as client:
            skipped, painted = [(await client.generate(asking(prompt, 1))).provenance for prompt in (hard, easy)]

    assert (skipped.spec.model, skipped.attempt_number) == ("tiny-heavy", 1)
    assert any(note.startswith("tiny-light left out: by the prompt alone") for note in skipped.notes)
    assert not any("left out" in note or "UNSCORED" in note for note in painted.notes)
    assert painted.attempt_number == 2 or painted.discriminator_confidence is not None


THREE = ("tiny-light", "tiny-heavy", "tiny-flow")
# Of the second hand-over no discriminator is shipped; that of the first one scores any picture of this size.
SCORED = ["--discriminator", "tiny-discriminator", "--discriminator", "tiny-discriminator"]


async def test_three_models_are_a_cascade_by_the_settings_and_once_registered_by_the_plan(tmp_path: Path) -> None:
    flags = ["--cascade", ",".join(THREE), *SCORED, "--confidence-threshold", str(THRESHOLD), "--slo-s", "600"]
    with local_suite(flags) as running:
        async with AsyncClient(running.endpoint.public) as client:
            for seed, prompt in enumerate(PROMPTS[:3]):
                await check_passed_on(client, prompt, seed, cascade="")
            register(running, tmp_path)
            async with (
                asyncio.timeout(GUARD_S),
                open_channel(running.endpoint.controller, RpcChannelSettings()) as channel,
            ):
                plan = await plan_with(ControllerClient(channel), ">".join(THREE))
            assert [one.discriminator for one in plan.cascades[0].stages] == ["tiny-light>tiny-heavy", TWICE, ""]
            assert {one.model for one in plan.registered} == set(THREE)
            async with asyncio.timeout(GUARD_S):
                await check_passed_on(client, PROMPTS[0], 0, cascade=">".join(THREE))


TWICE = "tiny-heavy>tiny-flow"


async def check_passed_on(client: AsyncClient, prompt: str, seed: int, cascade: str) -> None:
    """By a cascade of the plan as soon as the frontdoor heard of it, where one is named; its thresholds move. By the
    operator's own each stage's picture is the last where its confidence is above the threshold."""
    discriminator = open_discriminator(WEIGHTS / "tiny-discriminator")
    answer = (await client.generate(asking(prompt, seed))).provenance
    while cascade and answer.route.cascade != cascade:
        answer = (await client.generate(asking(prompt, seed))).provenance
    *scored, last = answer.route.stages
    assert [stage.model for stage in answer.route.stages] == list(THREE)
    assert [stage.discriminator for stage in scored] == ["tiny-light>tiny-heavy", TWICE]
    painted = last.model
    for stage in () if cascade else scored:
        picture = await client.generate(asking(prompt, seed, stage.model))
        confidence = discriminator.confidences([decode(picture.data, "image", discriminator.pixels)])[0]
        if confidence > stage.confidence_threshold:
            painted = stage.model
            break
    assert answer.spec.model == painted or cascade


def register(suite: LocalSuite, folder: Path) -> None:
    """All three with what they cost, and their cascade."""
    known = {entry["name"]: entry for entry in json.loads((WEIGHTS / "registry.json").read_text())["models"]}
    for name in THREE:
        (folder / f"{name}.json").write_text(profile_to_json(profile_of(name, known[name])))
        run(suite, "add", name, name, "--profile", str(folder / f"{name}.json"))
    digest, half = known["tiny-discriminator"]["digest"], {"thresholds": [0.0, 1.0], "shares": [0.0, 1.0]}
    pairs = ("tiny-light>tiny-heavy", TWICE)
    handovers = [{"discriminator": pair, "discriminator_digest": digest, **half} for pair in pairs]
    (folder / "cascade.json").write_text(json.dumps({"models": THREE, "handovers": handovers}))
    run(suite, "add-cascade", str(folder / "cascade.json"))


def profile_of(name: str, entry: Mapping[str, Any]) -> ModelProfile:
    """A tenth of a second a picture, on any device."""
    steps = entry["default_steps"]
    cost = steady(0.1 / steps)
    size, batch = SizeProfile(64, 64, NOTHING, NOTHING, NOTHING), BatchProfile(64, 64, True, 1, (cost,) * steps)
    return ModelProfile(name, entry["digest"], "", "float32", 1, "off", steps, (size,), (batch,))


def run(suite: LocalSuite, *arguments: str) -> None:
    command = [sys.executable, "-m", "pentimento.cli", "models", *arguments, "--state-dir", str(suite.state.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


async def plan_with(controller: ControllerClient, cascade: str) -> Plan:
    """The first plan that has it."""
    async with aclosing(controller.watch_plan("test")) as plans:
        async for plan in plans:
            if cascade in (one.cascade for one in plan.cascades):
                return plan
    raise AssertionError("the stream ended")
