"""Test an emulated worker over its real RPC: answers, stored objects, errors and switches of its model."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.emulation.emulated_worker.model import model_cost
from lab.emulation.emulated_worker.settings import EmulatedWorkerSettings
from lab.emulation.emulated_worker.wiring import wire
from lab.emulation.fleet_file import label_of, read_fleet
from lab.fixtures.frontdoor_suite import until
from pentimento.domain.errors import Cancelled, FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.execution import AttemptResult, ExecuteEvent, PlaceYielded, Started, StepProgress, WorkerCredits
from pentimento.domain.fleet import Capability, Plan, Replica, ReplicaKind, WorkerAssignment
from pentimento.domain.generation import (
    Attempt,
    CacheGrant,
    ControlNetSelection,
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    LatentSlot,
    LoraSelection,
    NoiseForm,
    ObjectReference,
    PlanVersion,
    Route,
    Scheduler,
    Start,
)
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from tests.lab.emulated_fleet.conftest import Emulated, held_steps
from tests.support.calls import result_of

SPEC = GenerationSpec("a red circle", "", "heavy", 512, 512, 10, 3.0, Scheduler.DDIM, seed=7)
DONOR = Donor("entry", "sha256:donor", 0.9)
GRANT = CacheGrant("grant", (LatentSlot(2, "latents/k2"), LatentSlot(5, "latents/k5")), "images/one", 60_000)


def execute(
    worker: Emulated, request_id: str = "request", start: Start | None = None, **options: Any
) -> AsyncIterator[ExecuteEvent]:
    held, spec = worker.held, options.pop("spec", SPEC)
    attempt = Attempt(request_id, 1, 1, "frontdoor", 1, "tenant")
    route = Route("route", start or FromNoise(), held.model, held.model_digest)
    return worker.client.execute(attempt, spec, route, held.worker_generation, **options)


async def credits_of(worker: Emulated) -> WorkerCredits:
    return await anext(worker.client.watch_credits("frontdoor", 1))


async def test_emulated_worker_declares_itself_emulated(worker: Emulated) -> None:
    credits = await credits_of(worker)

    assert Capability.EMULATED in credits.capabilities
    assert Capability.PREVIEW not in credits.capabilities
    assert (credits.held.model, credits.held.family, credits.credit_count) == ("heavy", "emulated", 2)


async def test_emulated_attempt_has_the_events_of_a_real_one(worker: Emulated) -> None:
    events = [event async for event in execute(worker)]

    assert isinstance(events[0], Started)
    assert any(isinstance(event, StepProgress) for event in events)
    assert [type(event) for event in events].count(PlaceYielded) == 1
    result = events[-1]
    assert isinstance(result, AttemptResult)
    assert (result.steps_run, result.steps_saved, result.model_digest) == (10, 0, worker.held.model_digest)
    assert [timing.stage for timing in result.timings] == ["start", "queue", "prepare", "denoise", "decode", "store"]
    assert any(note.startswith("emulated: ") for note in result.notes)


async def test_emulated_image_has_confidence_and_quality(worker: Emulated) -> None:
    label = label_of((await result_of(execute(worker))).image)

    assert label is not None
    assert (label.model, label.quality, label.start_step) == ("heavy", 0.6, 0)


async def test_its_steps_take_device_time_as_profiled(worker: Emulated) -> None:
    result = await result_of(execute(worker))

    # The device's own clock measures it, so a busy machine changes nothing.
    assert result.device_seconds == pytest.approx(0.01)


async def test_loras_of_the_fleet_are_loaded_and_kept(adapted_worker: Emulated) -> None:
    known = {adapter.name: adapter for adapter in (await credits_of(adapted_worker)).known_adapters or ()}
    neon = LoraSelection("neon", 0.5, known["neon"].digest)

    result = await result_of(execute(adapted_worker, spec=replace(SPEC, loras=(neon,))))

    assert result.device_seconds == pytest.approx(0.01 + 0.004)
    assert result.lora_patch_step == 0
    assert (await credits_of(adapted_worker)).resident_components == ("heavy", "neon")
    with pytest.raises(NotFound, match="LoRA 'neon'"):
        await result_of(execute(adapted_worker, "r2", spec=replace(SPEC, loras=(replace(neon, digest="sha256:0"),))))


@pytest.mark.parametrize("moves_models", [True, False])
async def test_planned_loras_are_prefetched_once(adapted_worker: Emulated, moves_models: bool) -> None:
    process, backend = adapted_worker.process, adapted_worker.backend
    wanted = WorkerAssignment(process.server.instance_id, "", "heavy", 1, prefetch=("mosaic", "nobody"))

    process.follow(backend, Plan(PlanVersion(1, 1), (wanted,), moves_models=moves_models))
    await until(lambda: "mosaic" in backend.adapters.resident)
    loads = list(process._background)
    process.follow(backend, Plan(PlanVersion(1, 2), (wanted,), moves_models=moves_models))

    assert backend.adapters.resident == ("mosaic",)
    assert process._background == loads


@pytest.mark.parametrize(("moves_models", "held"), [(True, "light"), (False, "heavy")])
async def test_worker_changes_model_if_plan_moves_models(worker: Emulated, moves_models: bool, held: str) -> None:
    process, backend = worker.process, worker.backend
    wanted = WorkerAssignment(process.server.instance_id, "", "light", 1)

    process.follow(backend, Plan(PlanVersion(1, 1), (wanted,), allocator="keeps-all", moves_models=moves_models))

    assert backend.target_model == held


async def test_registration_names_loras(adapted_worker: Emulated) -> None:
    assert await adapted_worker.client.prefetch(["mosaic"]) == ("heavy", "mosaic")

    process, backend = adapted_worker.process, adapted_worker.backend
    replica = process._describe(Replica("w", ReplicaKind.UNET_WORKER, "unix:/w", 1), backend, ())

    assert [adapter.name for adapter in replica.adapters] == ["mosaic", "neon"]
    assert replica.resident_models == ("heavy", "mosaic")


async def test_a_step_with_a_controlnet_waits_for_its_residuals(adapted_worker: Emulated) -> None:
    edges = ControlNetSelection("edges", b"", digest="sha256:" + "e" * 64)

    result = await result_of(execute(adapted_worker, spec=replace(SPEC, controlnets=(edges,))))

    assert result.device_seconds == pytest.approx(0.01 + 10 * 0.001)


async def test_captured_latent_can_be_resumed(worker: Emulated) -> None:
    first = await result_of(execute(worker, "first", cache_grant=GRANT))
    latent = next(latent for latent in first.captured.latents if latent.resume_step == 5)

    resumed = await result_of(execute(worker, "second", FromLatent(latent.object, 5, 10, latent.sigma, DONOR)))

    assert [latent.resume_step for latent in first.captured.latents] == [2, 5]
    assert (resumed.steps_run, resumed.steps_saved) == (5, 5)


async def test_its_image_can_be_started_from(worker: Emulated) -> None:
    first = await result_of(execute(worker, "first", cache_grant=GRANT))
    assert first.captured.image is not None

    start = FromImage(first.captured.image, 3, NoiseForm.VARIANCE_PRESERVING, DONOR)
    refined = await result_of(execute(worker, "second", start))

    assert (refined.steps_run, refined.steps_saved) == (7, 3)


async def test_missing_donor_is_named_and_saves_nothing(worker: Emulated) -> None:
    gone = ObjectReference("latents/none", "sha256:" + "0" * 64, 100)

    result = await result_of(execute(worker, start=FromLatent(gone, 5, 10, 0.5, DONOR)))

    assert (result.steps_run, result.bad_donor_reason) == (10, "OBJECT_MISSING")
    assert any(note.startswith("cache skipped: OBJECT_MISSING") for note in result.notes)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"spec": replace(SPEC, width_px=256)}, InvalidArgument),
        ({"spec": replace(SPEC, guidance_scale=1.0)}, InvalidArgument),
        ({"spec": replace(SPEC, num_inference_steps=0)}, InvalidArgument),
        ({"spec": replace(SPEC, model="light")}, FailedPrecondition),
        ({"spec": replace(SPEC, loras=(LoraSelection("x"),))}, NotFound),
        ({"image_format": "jpeg"}, InvalidArgument),
    ],
)
async def test_unsupported_request_is_rejected(
    options: dict[str, Any], error: type[Exception], worker: Emulated
) -> None:
    with pytest.raises(error):
        await result_of(execute(worker, **options))


async def test_a_cancelled_attempt_stops_and_frees_its_place(worker: Emulated) -> None:
    with held_steps():
        events = execute(worker)
        await anext(events)

        assert await worker.client.cancel("request", 1)
    with pytest.raises(Cancelled):
        await result_of(events)

    # Ten steps later its own is over.
    await result_of(execute(worker, "next"))
    assert (worker.backend.emulated.running_count, worker.backend.emulated.waiting_count) == (0, 0)


async def test_a_switch_drains_loads_and_serves_the_other_model(worker: Emulated) -> None:
    before = worker.held
    feed = worker.client.watch_credits("frontdoor", 1)
    async with asyncio.timeout(120):
        with held_steps():
            slow = asyncio.ensure_future(result_of(execute(worker)))
            while (await anext(feed)).running_count == 0:
                pass

            worker.backend.assign("light", 8)
            while (credits := await anext(feed)).credit_count:
                pass
        assert credits.held == before
        assert (await slow).model_digest == before.model_digest
        while not (credits := await anext(feed)).credit_count:
            pass

    assert credits.held.model == "light"
    spec = replace(SPEC, model="light", num_inference_steps=1, guidance_scale=1.0)
    assert (await result_of(execute(worker, "next", spec=spec))).model_digest == worker.held.model_digest


async def test_withdrawn_switch_changes_nothing(worker: Emulated) -> None:
    feed = worker.client.watch_credits("frontdoor", 1)
    async with asyncio.timeout(120):
        with held_steps():
            slow = asyncio.ensure_future(result_of(execute(worker)))
            while (await anext(feed)).running_count == 0:
                pass
            worker.backend.assign("light", 8)
            worker.backend.assign("heavy", 1)

            while (await anext(feed)).credit_count == 0:
                pass
            assert not slow.done()
            assert (worker.held.model, worker.backend.batch_limit) == ("heavy", 1)
        await slow


async def test_model_cost_scales_with_the_device(fleet_file: Path) -> None:
    fleet = read_fleet(fleet_file)
    slow = replace(fleet.devices[0], speed=0.5)

    heavy = model_cost(fleet.model("heavy"), slow)

    assert heavy.run_s == (pytest.approx((1, 0.02)), pytest.approx((2, 0.024)))
    assert model_cost(fleet.model("light"), slow).load_s == 0.001


async def test_a_model_that_the_device_cannot_hold_changes_nothing(worker: Emulated) -> None:
    worker.process.assign(worker.backend, WorkerAssignment("worker", "", "stranger", 1, 8))

    assert (worker.backend.target_model, worker.backend.batch_limit) == ("heavy", 2)


async def test_a_plan_bounds_its_batches(worker: Emulated) -> None:
    counts = []
    for most in (1, 0):
        worker.backend.assign("heavy", most)
        counts.append((await credits_of(worker)).credit_count)

    assert counts == [1, 2]


@pytest.mark.parametrize(
    ("name", "words"),
    [("", r"fleet: must be FILE#NAME, .*, got .*fleet\.toml$"), ("#tiny", "must be one of .*, got 'tiny'")],
)
async def test_fleet_without_devices_of_that_name_is_rejected(fleet_file: Path, name: str, words: str) -> None:
    settings = EmulatedWorkerSettings(RpcServerSettings(), RpcChannelSettings(), Path(f"{fleet_file}{name}"))

    with pytest.raises(InvalidArgument, match=words):
        wire(settings)
