"""Models and cascades registered, listed and removed over a socket; kept in the ledger; and what they change."""

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from pentimento.cli import cli, describe
from pentimento.clients.controller import ControllerClient, ModelRepositoryClient
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.fleet import ModelCost, Replica, ReplicaKind, ReplicaReport, UnplannedModel
from pentimento.domain.models import RegisteredModels, ReuseProfile
from pentimento.files.json_values import to_json
from pentimento.profiles.catalogue import PromiseSettings
from pentimento.profiles.rules import RuleChoice
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from pentimento.stores.ledger.fleet_ledger import open_fleet_ledger
from services.controller.settings import ControllerSettings, PolicySettings
from services.controller.wiring import ControllerProcess, wire
from tests.unit.controller.registered import cascade, handover_profile, unstated, variant, variant_of_its_own


class Running(NamedTuple):
    process: ControllerProcess
    models: ModelRepositoryClient
    controller: ControllerClient


@asynccontextmanager
async def running(folder: Path, url: str = "", planned: str = "", **flags: Any) -> AsyncIterator[Running]:
    url = url or f"sqlite:///{folder / 'fleet.sqlite'}"
    address = f"unix:{folder / 'c'}"
    policy = {"allocator": "diffserve", "serving": PolicySettings(light="light", heavy="heavy", slo_s=5.0)} | flags
    settings = ControllerSettings(
        RpcServerSettings(listen=(address,)),
        ledger_url=url,
        lease_s=60.0,
        cascade=planned,
        **policy,
    )
    ledger = open_fleet_ledger(url) if url != "none" else None
    process = wire(settings, ledger)
    await process.server.start()
    await process.warm()
    # It plans at once, by replicas that are never silent for too long, however busy the machine is.
    process.controller._plan_interval_s = 0.05
    process.controller._started_s = process.controller._joined_s = -math.inf
    process.controller._changed.set()
    process.server.set_serving()
    try:
        async with open_channel(address, RpcChannelSettings()) as channel:
            yield Running(process, ModelRepositoryClient(channel), ControllerClient(channel))
    finally:
        await process.drain()
        await process.server.stop()
        if ledger is not None:
            ledger.close()


LIGHT, MIDDLE, HEAVY = variant("light", ("gpu", 0.1)), variant("SDXL-Base"), variant("heavy", ("", 1.0))
THREE = cascade("light", "SDXL-Base", "heavy")


async def test_what_was_registered_is_listed_and_outlives_the_controller(folder: Path) -> None:
    async with running(folder) as suite:
        for one in (LIGHT, MIDDLE, HEAVY, LIGHT):
            await suite.models.register_model(one)
        await suite.models.register_cascade(THREE)
    async with running(folder) as again:
        listed = await again.models.registered()
        await again.models.remove_cascade(THREE.name)
        left = await again.models.registered()

    assert listed == RegisteredModels((MIDDLE, HEAVY, LIGHT), (THREE,))
    assert left == RegisteredModels((MIDDLE, HEAVY, LIGHT))


async def test_name_belongs_to_one_model_until_removal(folder: Path) -> None:
    other = replace(LIGHT, licence="another")
    async with running(folder) as suite:
        await suite.models.register_model(LIGHT)
        with pytest.raises(FailedPrecondition, match="light is registered with other ") as taken:
            await suite.models.register_model(other)
        assert taken.value.reason == "NAME_TAKEN"

        await suite.models.remove_model("light")
        await suite.models.register_model(other)

        assert (await suite.models.registered()).models == (other,)


async def test_a_cascade_needs_its_models_and_they_stay_while_it_is_there(folder: Path) -> None:
    async with running(folder) as suite:
        await suite.models.register_model(LIGHT)
        with pytest.raises(FailedPrecondition, match="heavy must be registered first"):
            await suite.models.register_cascade(cascade("light", "heavy"))
        await suite.models.register_model(HEAVY)
        await suite.models.register_cascade(cascade("light", "heavy"))
        with pytest.raises(FailedPrecondition, match="name: heavy is a model of light>heavy") as used:
            await suite.models.remove_model("heavy")
        assert used.value.reason == "MODEL_IN_USE"

        await suite.models.remove_cascade("light>heavy")
        await suite.models.remove_model("heavy")

        assert await suite.models.registered() == RegisteredModels((LIGHT,))


@pytest.mark.parametrize("name", ["absent", "../absent", "a" * 129])
async def test_what_is_not_there_cannot_be_removed(folder: Path, name: str) -> None:
    async with running(folder) as suite:
        for removed in (suite.models.remove_model(name), suite.models.remove_cascade(f"{name}>b")):
            with pytest.raises((NotFound, InvalidArgument)):
                await removed


async def test_bad_ones_are_refused_by_field_over_the_wire(folder: Path) -> None:
    async with running(folder) as suite:
        with pytest.raises(InvalidArgument) as refused:
            await suite.models.register_model(replace(LIGHT, name="../../etc"))
        listed = await suite.models.registered()

    assert [violation.field for violation in refused.value.violations] == ["model.name"]
    assert listed == RegisteredModels()


OWN = {name: variant_of_its_own(name) for name in ("light", "SDXL-Base", "heavy")}
PROFILED = handover_profile(OWN["SDXL-Base"], OWN["heavy"])


async def test_handover_profile_sets_the_share_and_is_listed(folder: Path) -> None:
    async with running(folder, promise=PromiseSettings(profile_rule=RuleChoice.MINIMUM)) as suite:
        for one in OWN.values():
            await suite.models.register_model(one)
        answered = await suite.models.register_cascade(unstated(THREE), handover_profiles=[PROFILED])
        listed = await suite.models.registered()

    first, second = answered.handovers
    assert (first.reuse_share, first.reuse_profile, second.reuse_share) == (0.0, None, 0.1)
    digest = f"sha256:{hashlib.sha256(PROFILED.encode()).hexdigest()}"
    assert second.reuse_profile == ReuseProfile(digest, 0.95, "minimum")
    assert listed.cascades == (answered,)


async def test_command_sends_profiles_and_reports_source_of_shares(folder: Path) -> None:
    (folder / "cascade.json").write_text(json.dumps(to_json(cascade("light", "SDXL-Base", "heavy"))))
    (folder / "unstated.json").write_text(json.dumps(to_json(unstated(THREE))))
    (folder / "profile.json").write_text(PROFILED)
    async with running(folder) as suite:
        for one in OWN.values():
            await suite.models.register_model(one)

        async def command(*words: str) -> Result:
            """Run the command in this process: a separate one would abandon a server that pauses while it connects."""
            at = ("--controller-address", f"unix:{folder / 'c'}")
            return await asyncio.to_thread(CliRunner().invoke, cli, ["models", *words, *at])

        given = "--profiles", str(folder / "profile.json")
        refused = await command("add-cascade", str(folder / "cascade.json"), *given)
        added = await command("add-cascade", str(folder / "unstated.json"), *given, "--json")
        listed = await command("list")

    assert isinstance(refused.exception, InvalidArgument)
    told = describe(refused.exception)
    assert "cascade.handovers[1].reuse_share: must be 0 where a profile says it, got 0.25" in told
    first, second = json.loads(added.output)["handovers"]
    assert (first["reuse_share"], "reuse_profile" in first, second["reuse_share"]) == (0.0, False, 0.2)
    assert second["reuse_profile"].keys() == {"file_digest", "alpha", "rule"}
    assert "heavy spares 0.2 of its steps (profiled: keeps 0.95 by lower_bound)" in listed.output


@pytest.mark.parametrize(
    ("profiles", "field"),
    [
        ([PROFILED, handover_profile(OWN["heavy"], OWN["light"])], "handover_profiles[1].of.reference_digest"),
        ([PROFILED.replace('"alpha": 0.95', '"alpha": 0.98')], "handover_profiles[0].asked.alpha"),
    ],
)
async def test_profile_of_other_models_registers_no_cascade(folder: Path, profiles: list[str], field: str) -> None:
    async with running(folder, promise=PromiseSettings(0.99 if "0.98" in profiles[0] else 0.95)) as suite:
        for one in OWN.values():
            await suite.models.register_model(one)
        with pytest.raises(InvalidArgument) as refused:
            await suite.models.register_cascade(unstated(THREE), handover_profiles=profiles)
        listed = await suite.models.registered()

    assert [violation.field for violation in refused.value.violations] == [field]
    assert listed.cascades == ()


async def test_registration_without_ledger_fails_with_reason(folder: Path) -> None:
    async with running(folder, "none") as suite:
        with pytest.raises(FailedPrecondition, match="--ledger-url") as refused:
            await suite.models.register_model(LIGHT)
        listed = await suite.models.registered()

    assert (refused.value.reason, listed) == ("NO_LEDGER", RegisteredModels())


async def test_a_registered_profile_lets_a_model_be_planned_that_no_worker_has_measured(folder: Path) -> None:
    worker = Replica("w1", ReplicaKind.UNET_WORKER, "unix:/w1", 1, device="gpu", available_models=("light", "heavy"))
    measured = replace(worker, costs=(ModelCost("heavy", ((1, 2.0),)),))
    async with running(folder) as suite:
        await suite.controller.register(measured)

        async def fleet_where(holds: object) -> None:
            async with asyncio.timeout(120):
                while True:
                    await suite.controller.report(ReplicaReport("w1", 1))
                    fleet = await suite.controller.fleet()
                    if holds(fleet):  # type: ignore[operator]
                        return
                    await asyncio.sleep(0.01)

        await fleet_where(lambda fleet: fleet.unplanned == (UnplannedModel("light", "gpu", "PROFILE_MISSING"),))
        await suite.models.register_model(LIGHT)
        await fleet_where(lambda fleet: not fleet.unplanned and fleet.plan.allocator == "diffserve")


async def test_a_registered_cascade_of_three_is_planned_once_it_is_registered(folder: Path) -> None:
    models = ("light", "SDXL-Base", "heavy")
    costs = tuple(ModelCost(model, ((1, seconds),)) for model, seconds in zip(models, (0.1, 0.3, 1.0), strict=True))
    async with running(folder, planned=THREE.name) as suite:
        for number in range(4):
            name = f"w{number}"
            worker = Replica(name, ReplicaKind.UNET_WORKER, f"unix:/{name}", 1, available_models=models, costs=costs)
            await suite.controller.register(worker)
        seen = set()
        async with asyncio.timeout(120):
            while "cascade" not in seen:
                for number in range(4):
                    await suite.controller.report(ReplicaReport(f"w{number}", 1))
                plan = (await suite.controller.fleet()).plan
                if plan.allocator == "diffserve" and not seen:
                    for one in OWN.values():
                        await suite.models.register_model(one)
                    await suite.models.register_cascade(unstated(THREE), handover_profiles=[PROFILED])
                if plan.allocator != "resident":
                    seen.add(plan.allocator)
                await asyncio.sleep(0.01)

    assert [planned.cascade for planned in plan.cascades] == [THREE.name]
    assert [stage.reuse_share for stage in plan.cascades[0].stages] == [0.0, 0.2, 0.0]
    assert [pool.model for pool in plan.pools] == list(models)
    assert "diffserve" in seen
