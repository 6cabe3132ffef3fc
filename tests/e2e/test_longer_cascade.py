"""Test a real cascade of three models, with a discriminator for each but the last."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from pentimento.clients.controller import ControllerClient
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.domain.fleet import Plan
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.images.decoding import decode
from pentimento.profiles.costs import NOTHING, BatchProfile, ModelProfile, SizeProfile, costs_to_json, steady
from pentimento.profiles.document import profiles_to_json
from pentimento.profiles.kinds import handover_row
from pentimento.profiles.rules import ImageSample
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.models import WEIGHTS
from tests.support.profiles import HANDOVER_PROFILE, changed

THRESHOLD = 0.5
GUARD_S = 120.0
# CI starts a separate suite with three models.
pytestmark = pytest.mark.faults
PROMPTS = [f"a small {thing}" for thing in ("red circle", "blue star", "green square")]


def asking(prompt: str, seed: int, model: str = "") -> ImageRequest:
    return ImageRequest(prompt, model=model, seed=seed, cache=CacheMode.OFF, feature_reuse=False)


THREE = ("tiny-light", "tiny-heavy", "tiny-flow")
# The zoo has no discriminator for the second hand-over; the first one's scores any image of this size.
SCORED = ["--discriminator", "tiny-discriminator", "--discriminator", "tiny-discriminator"]


async def test_three_models_are_a_cascade_by_the_settings_and_once_registered_by_the_plan(tmp_path: Path) -> None:
    flags = ["--cascade", ",".join(THREE), *SCORED, "--confidence-threshold", str(THRESHOLD), "--slo-s", "600"]
    with local_suite(flags) as running:
        async with AsyncClient(running.endpoint.public) as client:
            for seed, prompt in enumerate(PROMPTS):
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
    """Check the models, discriminators and result of one answer. With `cascade`, wait for the plan's cascade, with
    moving thresholds. Without it, the first image with a confidence above the threshold is the result."""
    discriminator = open_discriminator(WEIGHTS / "tiny-discriminator")
    answer = (await client.generate(asking(prompt, seed))).provenance
    while cascade and answer.route.cascade != cascade:
        answer = (await client.generate(asking(prompt, seed))).provenance
    *scored, last = answer.route.stages
    assert [stage.model for stage in answer.route.stages] == list(THREE)
    assert [stage.discriminator for stage in scored] == ["tiny-light>tiny-heavy", TWICE]
    reused = "tiny-heavy started from the image of tiny-light: 30 steps"
    assert (reused in answer.notes) is (bool(cascade) and answer.spec.model != "tiny-light")
    generated = last.model
    for stage in () if cascade else scored:
        image = await client.generate(asking(prompt, seed, stage.model))
        confidence = discriminator.confidences([decode(image.data, "image", discriminator.pixels)])[0]
        if confidence > stage.confidence_threshold:
            generated = stage.model
            break
    assert answer.spec.model == generated or cascade


def register(suite: LocalSuite, folder: Path) -> None:
    """Register the three models with their costs, and their cascade."""
    known = {entry["name"]: entry for entry in json.loads((WEIGHTS / "registry.json").read_text())["models"]}
    for name in THREE:
        (folder / f"{name}.json").write_text(costs_to_json(profile_of(name, known[name])))
        run(suite, "add", name, name, "--profiles", str(folder / f"{name}.json"))
    digest, half = known["tiny-discriminator"]["digest"], {"thresholds": [0.0, 1.0], "shares": [0.0, 1.0]}
    pairs = ("tiny-light>tiny-heavy", TWICE)
    handovers = [{"discriminator": pair, "discriminator_digest": digest, **half} for pair in pairs]
    (folder / "cascade.json").write_text(json.dumps({"models": THREE, "handovers": handovers}))
    (folder / "handover.json").write_text(handover_of(known))
    run(suite, "add-cascade", str(folder / "cascade.json"), "--profiles", str(folder / "handover.json"))


def handover_of(known: Mapping[str, Mapping[str, Any]]) -> str:
    """Allow the heavy model to skip twenty of its fifty steps if it starts from the light image."""
    light, heavy = (known[name]["digest"] for name in THREE[:2])
    rows = (handover_row(0.4, [ImageSample(1.0, 1.0)] * 60, HANDOVER_PROFILE.asked.alpha),)
    return profiles_to_json(changed(HANDOVER_PROFILE, reference_digest=light, model_digest=heavy, rows=rows))


def profile_of(name: str, entry: Mapping[str, Any]) -> ModelProfile:
    """Return costs of 0.1 s per image on any device."""
    steps = entry["default_steps"]
    cost = steady(0.1 / steps)
    size, batch = SizeProfile(64, 64, NOTHING, NOTHING, NOTHING), BatchProfile(64, 64, True, 1, (cost,) * steps)
    return ModelProfile(name, entry["digest"], "", "float32", 1, "off", steps, (size,), (batch,))


def run(suite: LocalSuite, *arguments: str) -> None:
    command = [sys.executable, "-m", "pentimento.cli", "models", *arguments, "--state-dir", str(suite.state.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


async def plan_with(controller: ControllerClient, cascade: str) -> Plan:
    """Return the first plan with the cascade."""
    async with aclosing(controller.watch_plan("test")) as plans:
        async for plan in plans:
            if cascade in (one.cascade for one in plan.cascades):
                return plan
    raise AssertionError("the stream ended")
