"""Test many attempts together: they share steps, and each result equals the result of a single attempt."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from prometheus_client import REGISTRY
from torch import Tensor

from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.engine import DenoisingListener, EngineJob, MemoryBudget, MemoryModel, StepEngine
from pentimento.domain.errors import Cancelled, InvalidArgument
from pentimento.domain.execution import AttemptResult, PlaceYielded, Started
from pentimento.domain.generation import GenerationSpec
from pentimento.profiles.costs import costs_from_json
from pentimento.tensors.cuda import tensor_over
from pentimento.wire.codec import encode
from pentimento.wire.tensors import tensor_from_proto
from services.unet_worker.attempts.execution import ProgressBridge
from services.unet_worker.profiling.__main__ import main as profile_main
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.requests import attempt, execute, route, spec_with
from tests.integration.unet_worker.test_peers import controlled
from tests.support.calls import result_of
from tests.support.waiting import until


async def latents_of(worker: Served, spec: GenerationSpec, request_id: str) -> Tensor:
    request = pb.ExecuteRequest(
        attempt=encode(attempt(request_id=request_id), generation_pb2.Attempt),
        spec=encode(spec, generation_pb2.GenerationSpec),
        route=encode(route(worker), generation_pb2.Route),
        worker_generation=worker.held.worker_generation,
        return_latents=True,
    )
    answers = [answer async for answer in UnetWorkerServiceStub(worker.channel).Execute(request)]
    return tensor_over(tensor_from_proto(answers[-1].result.final_latents))


def steps_by_batch_size() -> dict[str, float]:
    """Cumulative, as Prometheus counts."""
    found = next(metric for metric in REGISTRY.collect() if metric.name == "pentimento_worker_batch_count")
    return {sample.labels["le"]: sample.value for sample in found.samples if "le" in sample.labels}


@contextmanager
def held_until_given(engine: StepEngine, count: int) -> Iterator[None]:
    """Delay the engine's first step until it has `count` requests. On a busy machine the first could otherwise end
    before the last arrives."""
    submit, given, all_given = engine.submit, [0], threading.Event()

    def counted(request: DenoisingRequest, listener: DenoisingListener) -> EngineJob:
        job = submit(request, listener)
        given[0] += 1
        if given[0] == count:
            all_given.set()
        return job

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "submit", counted)
        engine.call(lambda: all_given.wait(60))
        yield


async def test_concurrent_attempts_share_steps_with_unchanged_images(worker: Served) -> None:
    specs = [spec_with(seed=seed, num_inference_steps=20 + seed) for seed in range(4)]
    alone = [await latents_of(worker, spec, f"alone-{spec.seed}") for spec in specs]
    before = steps_by_batch_size()

    with held_until_given(worker.model.engine, len(specs)):
        together = await asyncio.gather(*(latents_of(worker, spec, f"together-{spec.seed}") for spec in specs))

    after = steps_by_batch_size()
    shared = (after["+Inf"] - before["+Inf"]) - (after["1.0"] - before["1.0"])
    assert shared > 0
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


async def test_cancel_inside_batch_ends_only_its_attempt(worker: Served) -> None:
    long = execute(worker, attempt=attempt(request_id="long"), spec=spec_with(num_inference_steps=900))
    assert isinstance(await anext(long), Started)
    other = asyncio.create_task(
        result_of(execute(worker, attempt=attempt(request_id="other"), spec=spec_with(num_inference_steps=30)))
    )
    await asyncio.sleep(0)

    await worker.client.cancel("long", 1)

    with pytest.raises(Cancelled):
        await result_of(long)
    assert (await other).steps_run == 30


async def test_image_above_the_memory_budget_is_refused_and_the_next_one_generated(worker: Served) -> None:
    one_row = 2**20 / 32**2
    worker.model.engine.limits.set_budget(MemoryBudget(3 * 2**20, MemoryModel(0.0, one_row)))

    with pytest.raises(InvalidArgument, match=r"64x64 pixels with guidance need about 8 MiB.*budget of 3 MiB"):
        await result_of(execute(worker, attempt=attempt(1), spec=spec_with(width_px=64, height_px=64)))

    credits = await anext(worker.client.watch_credits("frontdoor", 1))
    assert credits.credit_count == 1
    assert (await result_of(execute(worker, attempt=attempt(2)))).image


async def test_worker_without_batches_holds_one_attempt_one_more_urgent_and_one_to_prepare(
    checkpoint: Path, directory: Path
) -> None:
    async with serve(checkpoint, directory, max_batch=1) as worker:
        credits = await anext(worker.client.watch_credits("frontdoor", 1))

    assert (credits.credit_count, credits.reserve_count, credits.preparing_count) == (1, 1, 1)


async def test_place_is_yielded_once_before_the_image_ends(worker: Served) -> None:
    events = [event async for event in execute(worker, spec=spec_with(num_inference_steps=20))]

    assert [type(event) for event in events].count(PlaceYielded) == 1
    assert isinstance(events[-1], AttemptResult)


async def test_yielded_place_is_taken_while_the_image_is_finished(checkpoint: Path, directory: Path) -> None:
    async with serve(checkpoint, directory, max_batch=1, credits=1) as worker:
        first = execute(worker, attempt=attempt(request_id="first"), spec=spec_with(num_inference_steps=20))
        async for event in first:
            if isinstance(event, PlaceYielded):
                break

        second = await result_of(execute(worker, attempt=attempt(request_id="second")))

        assert second.image
        assert (await result_of(first)).image


async def test_result_has_device_time_and_only_measured_energy(worker: Served) -> None:
    result = await result_of(execute(worker))

    assert result.device_seconds > 0
    assert (result.energy_joules is None) == (worker.switch._loader._energy is None)


async def test_controller_receives_cost_of_newest_steps(
    checkpoint: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = ProgressBridge.stepped
    address = f"unix:{directory / 'c'}"
    async with controlled(directory) as process, serve(checkpoint, directory, controller_address=address) as worker:
        first_s, slower_s = worker.held.step_s, 2 * worker.held.step_s

        def slowed(bridge: ProgressBridge, step: int, predicted_clean: Tensor | None) -> None:
            time.sleep(slower_s)
            stepped(bridge, step, predicted_clean)

        def told_s() -> list[float]:
            assert worker.process.registration is not None
            worker.process.registration.report_soon()
            costs = [cost for one in process.controller.fleet().replicas for cost in one.replica.costs]
            return [seconds / worker.held.default_steps for cost in costs for _, seconds in cost.run_s]

        await until(lambda: told_s() == [pytest.approx(first_s)])
        monkeypatch.setattr(ProgressBridge, "stepped", slowed)
        await result_of(execute(worker, spec=spec_with(num_inference_steps=60)))

        await until(lambda: told_s() != [pytest.approx(first_s)])
        assert told_s() >= [slower_s]
        assert worker.held.step_s == first_s


async def test_lag_of_the_event_loop_is_measured(worker: Served) -> None:
    await result_of(execute(worker, spec=spec_with(num_inference_steps=100)))

    assert REGISTRY.get_sample_value("pentimento_worker_event_loop_lag_seconds_count")


async def test_written_profile_can_be_read(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    flags = ["--steps", "2", "--batch-sizes", "1,2", "--device", "cpu"]

    await profile_main(["cost", "--model", str(checkpoint), "--out", str(out), *flags])

    profile = costs_from_json(out.read_text())
    assert [(batch.batch_size, len(batch.steps)) for batch in profile.batches] == [(1, 2), (2, 2)]
    assert [(size.width_px, size.height_px) for size in profile.sizes] == [(32, 32)]
    assert (profile.model, profile.device, profile.step_count) == (checkpoint.name, "cpu", 2)


@pytest.mark.parametrize("size", ["32", "0x32", "33x32", "32x32x32"])
async def test_unprofiled_size_is_named(checkpoint: Path, tmp_path: Path, size: str) -> None:
    with pytest.raises(InvalidArgument, match="sizes"):
        await profile_main(
            ["cost", "--model", str(checkpoint), "--out", str(tmp_path / "profile.json"), "--sizes", size]
        )


async def test_replay_shares_no_step(worker: Served) -> None:
    before = steps_by_batch_size()
    specs = [spec_with(seed=seed, num_inference_steps=20) for seed in range(3)]

    with held_until_given(worker.model.engine, len(specs)):
        await asyncio.gather(
            *(
                result_of(execute(worker, attempt=attempt(request_id=f"r-{spec.seed}"), spec=spec, replay_of="r"))
                for spec in specs
            )
        )

    after = steps_by_batch_size()
    assert after["+Inf"] - before["+Inf"] == after["1.0"] - before["1.0"] == 3 * 20
