"""Test a gateway that follows plans without own settings: alpha, bias, eviction and admission."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import until
from pentimento.clients.controller import ControllerClient
from pentimento.domain.fleet import CachePlan, Plan
from pentimento.domain.generation import FromLatent, FromNoise, PlanVersion
from pentimento.profiles.document import profiles_to_json
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from pentimento.settings import SettingsError
from services.controller.settings import ControllerSettings, PolicySettings
from services.controller.wiring import wire
from tests.support.gateways import (
    RunningGateway,
    at_similarity,
    attempt,
    embedding,
    gateway_settings,
    image_thresholds,
    running_gateway,
    scope,
)
from tests.support.profiles import reuse_step
from tests.unit.vectordb_gateway.test_lookup_profiles import PROFILE

FAR_APART = [embedding(*([0] * number), 1) for number in range(4)]
TWO_ROWS = replace(PROFILE, rows=(*PROFILE.rows, reuse_step(10, 80, 0.95, 0.9, 0.85)))


def profiled(directory: Path) -> tuple[str, ...]:
    (directory / "latents.json").write_text(profiles_to_json(TWO_ROWS))
    return "--profiles", str(directory / "latents.json")


def follow(gateway: RunningGateway, sequence: int = 1, **cache: object) -> None:
    gateway.process.planned.take(Plan(PlanVersion(7, sequence), cache=CachePlan(**cache)))  # type: ignore[arg-type]


async def test_plan_gives_alpha_if_the_request_does_not(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *profiled(tmp_path)) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        follow(gateway, alpha=0.95)

        unsaid = await gateway.lookup(at_similarity(0.99))
        said = await gateway.lookup(at_similarity(0.99), quality=0.5)

    assert unsaid.start == FromNoise()
    assert unsaid.reason == ("miss: quality 0.95 asked for, thresholds profiled for 0.90; plan 7.1: alpha 0.95")
    assert isinstance(said.start, FromLatent)


async def test_bias_of_a_plan_moves_rows_and_is_named(tmp_path: Path) -> None:
    """Step 5 is permitted from 0.8 on; shifted by one row, 0.85 permits no step."""
    async with running_gateway(tmp_path, *profiled(tmp_path)) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        before = await gateway.lookup(at_similarity(0.85))
        follow(gateway, bias=-1)
        after = await gateway.lookup(at_similarity(0.85))
        nearer = await gateway.lookup(at_similarity(0.99))

    assert isinstance(before.start, FromLatent)
    assert after.start == FromNoise()
    assert isinstance(nearer.start, FromLatent)
    assert nearer.reason.endswith("plan 7.1: cache bias -1")


async def test_operators_bias_overrides_the_plan(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *profiled(tmp_path), "--cache-bias", "0") as gateway:
        await gateway.store(embedding(1), steps=(5,))
        follow(gateway, bias=-1)

        answer = await gateway.lookup(at_similarity(0.85))

    assert isinstance(answer.start, FromLatent)
    assert answer.reason.endswith("plan 7.1: cache bias +0 is the operator's")


async def test_what_the_plan_does_not_admit_is_granted_nothing(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *image_thresholds("0.3:0.4")) as gateway:
        ask = gateway.client.reserve
        follow(gateway, admits=("noise",), admits_light=False)
        noise, light = await ask(scope(), attempt()), await ask(scope(), attempt(), light=True)
        hit = await ask(scope(), attempt(), 5, start_kind="latent")
        follow(gateway, sequence=2)
        later = await ask(scope(), attempt(), 5, start_kind="latent", light=True)

    assert [grant is not None for grant in (noise, light, hit, later)] == [True, False, False, True]


async def test_eviction_follows_the_plan_from_the_next_round(tmp_path: Path) -> None:
    """Two of four entries may stay: the newest by fifo, the used ones by lcbfu."""
    async with running_gateway(tmp_path, "--max-entries", "2") as gateway:
        follow(gateway, eviction="lcbfu")
        gateway.process.gateway.capacity.follow_rule()
        for text in FAR_APART:
            await gateway.store(text)
        for text in FAR_APART[:2]:
            start = (await gateway.lookup(text)).start
            assert isinstance(start, FromLatent)
            await gateway.client.report_start(start.latent.key, from_image=False, taken=True)
        gateway.maintain()

        found = [isinstance((await gateway.lookup(text)).start, FromLatent) for text in FAR_APART]

    assert found == [True, True, False, False]


async def test_a_plan_that_makes_no_sense_changes_nothing(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        follow(gateway, alpha=0.8)
        before = gateway.process.planned.in_force
        follow(gateway, sequence=2, eviction="random")

        assert gateway.process.planned.in_force == before


async def test_a_controllers_policy_reaches_the_gateway_that_may_follow(tmp_path: Path) -> None:
    """NIRVANA caches only images from noise, and evicts by LCBFU."""
    address = f"unix:{tmp_path / 'c'}"
    serving = PolicySettings(heavy="m")
    controller = wire(
        ControllerSettings(
            RpcServerSettings(listen=(address,)), serving=serving, allocator="nirvana-only", plan_interval_s=0.05
        )
    )
    await controller.server.start()
    await controller.warm()
    controller.server.set_serving()
    try:
        flags = ("--controller-address", address)
        async with (
            running_gateway(tmp_path, *flags, "--follow-plan", "yes") as following,
            open_channel(address, RpcChannelSettings()) as channel,
        ):
            await until(lambda: following.process.planned.in_force.eviction == "lcbfu")
            plan = (await ControllerClient(channel).fleet()).plan
            assert following.process.planned.in_force.admits == plan.cache.admits == ("noise",)
    finally:
        await controller.drain()
        await controller.server.stop()


def test_leave_without_a_controller_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--follow-plan needs a --controller-address"):
        gateway_settings(tmp_path, "--follow-plan", "yes")
