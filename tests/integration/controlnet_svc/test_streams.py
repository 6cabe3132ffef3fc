"""Residuals over real sockets: those of diffusers' ControlNet, by either transport; typed errors for all else."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.fixtures.frontdoor_suite import until
from lab.fixtures.step_streams import answer_to
from pentimento.clients.controlnet import ControlNetClient
from pentimento.domain.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.fleet import ComponentPlacement, Plan, ReplicaKind
from pentimento.domain.generation import ControlKind, PlanVersion, Preprocessor
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.tensors.cuda import outgoing_tensor
from pentimento.tensors.regions import RegionDirectory, RegionSize, SharedRegion
from pentimento.wire.tensors import UNBOUND, Binding
from services.controlnet_svc import streams
from tests.integration.controlnet_svc.conftest import (
    EDGES,
    LAYOUT,
    OPEN_S,
    Service,
    assert_equal,
    condition,
    latents,
    of_diffusers,
    request_for,
    tensors_of,
)


@pytest.mark.parametrize(("shared", "lined"), [(True, True), (True, False), (False, True)])
async def test_residuals_are_those_of_diffusers(service: Service, shared: bool, lined: bool) -> None:
    directory = service.directory if shared else None
    async with open_channel(service.address, RpcChannelSettings()) as channel:
        scaled = replace(request_for().controlnet, conditioning_scale=0.7)
        client = ControlNetClient(channel, directory, lined)
        stream = await client.open_stream(request_for(controlnet=scaled), 1, OPEN_S)
        assert stream.lined == (shared and lined)
        for step, timestep in enumerate((901.0, 501.0, 1.0)):
            sent = outgoing_tensor(latents(seed=step), UNBOUND)
            received = await answer_to(stream, step, timestep, sent)
            assert (received.ack is not None) == shared
            assert_equal(tensors_of(received), of_diffusers(EDGES, timestep, 0.7, seed=step))
        stream.close()


async def test_streams_of_two_requests_share_forward_passes_and_keep_their_own(service: Service) -> None:
    opened = [await service.client.open_stream(request_for(rows=rows), 1, OPEN_S) for rows in (2, 1, 2)]

    async def steps(stream: Any, rows: int) -> dict[str, Tensor]:
        received = None
        for step in range(8):
            received = await answer_to(stream, step, 500.0, outgoing_tensor(latents(rows), UNBOUND))
        assert received is not None
        return tensors_of(received)

    found = await asyncio.gather(*(steps(stream, rows) for stream, rows in zip(opened, (2, 1, 2), strict=True)))

    for got, rows in zip(found, (2, 1, 2), strict=True):
        assert_equal(got, of_diffusers(EDGES, 500.0, 1.0, rows))


async def test_of_sizes_without_end_only_some_are_remembered(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEPT_SIZES", 1)
    for rows in (2, 1, 2):
        stream = await service.client.open_stream(request_for(rows=rows), 1, OPEN_S)
        received = await answer_to(stream, 0, 500.0, outgoing_tensor(latents(rows), UNBOUND))

        assert_equal(tensors_of(received), of_diffusers(EDGES, 500.0, 1.0, rows))
        assert len(service.process.controlnets._layers) == 1
        stream.close()


async def test_no_region_outlives_its_stream(service: Service) -> None:
    stream = await service.client.open_stream(request_for(), 1, OPEN_S)
    assert service.directory.region_count() == 0  # its name went when both had it
    stream.close()

    await asyncio.wait_for(service.process.drain(), 120)
    assert service.process.controlnets.open_count == 0


async def test_stream_of_leaving_caller_leaves_no_region(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    create, begun, goes_on, made = RegionDirectory.create, threading.Event(), threading.Event(), threading.Event()

    def slowly(directory: RegionDirectory, size: RegionSize) -> SharedRegion:
        begun.set()
        assert goes_on.wait(60)
        region = create(directory, size)
        made.set()
        return region

    monkeypatch.setattr(RegionDirectory, "create", slowly)
    opening = asyncio.create_task(service.client.open_stream(request_for(), 1, OPEN_S))
    async with asyncio.timeout(60):
        await until(begun.is_set)
        opening.cancel()
        await until(lambda: not service.process.controlnets.open_count)

        goes_on.set()

        await until(made.is_set)
        await until(lambda: not service.directory.region_count())


NAN_STATES = outgoing_tensor(torch.full((2, 77, 128), torch.nan), UNBOUND)
NO_STATES = outgoing_tensor(torch.zeros(2, 0, 128), UNBOUND)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("change", "of_controlnet", "error", "reason"),
    [
        ({"base_model_digest": "sha256:" + "0" * 64}, {}, FailedPrecondition, "WRONG_BASE_MODEL"),
        ({"step_count": 0}, {}, InvalidArgument, "INVALID_FIELD"),
        ({"step_count": 10_001}, {}, InvalidArgument, "INVALID_FIELD"),
        ({"width_px": 128}, {}, InvalidArgument, "INVALID_FIELD"),
        ({"width_px": 2**31}, {}, InvalidArgument, "INVALID_FIELD"),
        ({"latent_dims": (4, 16, 16)}, {}, InvalidArgument, "INVALID_FIELD"),
        ({"latent_dims": (8, 4096, 4096)}, {}, InvalidArgument, "INVALID_FIELD"),
        ({"states": NAN_STATES}, {}, InvalidArgument, "INVALID_FIELD"),
        ({"states": NO_STATES}, {}, InvalidArgument, "INVALID_FIELD"),
        ({}, {"name": "../tiny-controlnet-edges"}, NotFound, "UNKNOWN_CONTROLNET"),
        ({}, {"name": "tiny-lora-neon"}, NotFound, "UNKNOWN_CONTROLNET"),
        ({}, {"digest": "sha256:" + "1" * 64}, FailedPrecondition, "CONTROLNET_DIGEST_MISMATCH"),
        ({}, {"conditioning_image": b""}, InvalidArgument, "INVALID_FIELD"),
        ({}, {"conditioning_image": b"no picture"}, InvalidArgument, "INVALID_FIELD"),
        ({}, {"conditioning_image": condition()[:-40]}, InvalidArgument, "INVALID_FIELD"),
        ({}, {"conditioning_image": condition(32)}, InvalidArgument, "INVALID_FIELD"),
        ({}, {"conditioning_scale": float("nan")}, InvalidArgument, "INVALID_FIELD"),
        ({}, {"conditioning_scale": float("inf")}, InvalidArgument, "INVALID_FIELD"),
        ({}, {"kind": ControlKind.LINES}, InvalidArgument, "INVALID_FIELD"),
        ({}, {"preprocessor": Preprocessor.DEPTH}, FailedPrecondition, "DEPTH_MODEL_MISMATCH"),
    ],
)
async def test_open_stream_refuses_request_and_serves_the_next(
    shared_service: Service,
    change: dict[str, Any],
    of_controlnet: dict[str, Any],
    error: type[PentimentoError],
    reason: str,
) -> None:
    client, controlnet = shared_service.client, replace(request_for().controlnet, **of_controlnet)

    with pytest.raises(error) as caught:
        await client.open_stream(request_for(**{"controlnet": controlnet, **change}), 1, OPEN_S)

    assert caught.value.reason == reason
    assert shared_service.process.controlnets.open_count == 0
    await assert_serves(client)


async def assert_serves(client: ControlNetClient) -> None:
    stream = await client.open_stream(request_for(), 2, OPEN_S)
    received = await answer_to(stream, 0, 500.0, outgoing_tensor(latents(), UNBOUND))
    assert_equal(tensors_of(received), of_diffusers(EDGES, 500.0, 1.0))
    stream.close()
    await all_closed(client)


async def all_closed(client: ControlNetClient) -> None:
    async for credits in client.watch_credits():
        if credits.open_stream_count == 0:
            return


@pytest.mark.parametrize(
    ("step", "timestep", "sent", "error"),
    [
        (0, 1.0, latents(), Aborted),
        (10, 1.0, latents(), InvalidArgument),
        (1, float("nan"), latents(), InvalidArgument),
        (1, 1.0, latents(rows=1), InvalidArgument),
        (1, 1.0, latents().half(), InvalidArgument),
        (1, 1.0, torch.full_like(latents(), torch.inf), InvalidArgument),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_wrong_step_ends_the_stream(
    shared_service: Service, step: int, timestep: float, sent: Tensor, error: type[PentimentoError]
) -> None:
    stream = await shared_service.client.open_stream(request_for(), 1, OPEN_S)
    await answer_to(stream, 0, 500.0, outgoing_tensor(latents(), UNBOUND))

    with pytest.raises(error):
        await answer_to(stream, step, timestep, outgoing_tensor(sent, UNBOUND))
    stream.close()
    await all_closed(shared_service.client)


@pytest.mark.parametrize(
    "change",
    [{"request_id": "another"}, {"fencing_token": 8}, {"step_index": 5}, {"layer": "text"}, {"stream_epoch": 1}],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_latent_of_another_stream_ends_the_stream(
    shared_service: Service, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await shared_service.client.open_stream(request_for(), 2, OPEN_S)
    adapter = request_for().base_model_digest
    right = Binding("request", 7, 0, "latent", adapter, 2)
    monkeypatch.setattr(stream, "_binding", lambda *_: replace(right, **change))

    with pytest.raises(Aborted) as caught:
        await answer_to(stream, 0, 500.0, outgoing_tensor(latents(), UNBOUND))
    assert caught.value.reason == "STALE_FRAME"
    stream.close()
    await all_closed(shared_service.client)


@pytest.mark.parametrize("overrides", [{"credits": 1}])
async def test_streams_beyond_the_credits_are_refused_and_welcome_later(service: Service) -> None:
    first = await service.client.open_stream(request_for(), 1, OPEN_S)

    with pytest.raises(ResourceExhausted) as caught:
        await service.client.open_stream(request_for(LAYOUT), 1, OPEN_S)
    assert (caught.value.reason, caught.value.retry_after_ms) == ("NO_CREDIT", 100)

    first.close()
    await all_closed(service.client)
    second = await service.client.open_stream(request_for(LAYOUT), 1, OPEN_S)
    second.close()


async def test_every_credit_is_a_stream_without_caller_names(service: Service) -> None:
    count = service.process.controlnets.credit_count
    streams = await asyncio.gather(
        *(service.client.open_stream(request_for(), epoch, OPEN_S) for epoch in range(1, count + 1))
    )

    assert service.process.controlnets.open_count == count == 32
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("overrides", [{"memory_budget_mib": 3}])
async def test_one_leaves_for_another_and_never_while_it_is_in_use(service: Service) -> None:
    """Each takes more than half of the budget."""
    shelf = service.process.controlnets.shelf
    edges = await service.client.open_stream(request_for(EDGES), 1, OPEN_S)

    with pytest.raises(ResourceExhausted) as caught:
        await service.client.open_stream(request_for(LAYOUT), 1, OPEN_S)
    assert caught.value.reason == "NO_DEVICE_MEMORY"
    assert await service.client.prefetch([LAYOUT]) == (EDGES,)

    edges.close()
    await all_closed(service.client)
    layout = await service.client.open_stream(request_for(LAYOUT), 1, OPEN_S)
    received = await answer_to(layout, 0, 500.0, outgoing_tensor(latents(), UNBOUND))
    assert_equal(tensors_of(received), of_diffusers(LAYOUT, 500.0, 1.0))
    assert (shelf.resident, shelf.eviction_count) == ((LAYOUT,), 1)
    layout.close()


async def test_what_a_plan_places_here_is_loaded_before_anybody_asks(service: Service) -> None:
    process, name = service.process, service.process.server.instance_id
    here = ComponentPlacement(ReplicaKind.CONTROLNET, LAYOUT, (name,))
    elsewhere = ComponentPlacement(ReplicaKind.CONTROLNET, EDGES, ("another",))
    stranger = ComponentPlacement(ReplicaKind.CONTROLNET, "none", (name,))

    process.follow(Plan(PlanVersion(1, 1), components=(elsewhere, stranger, here)))
    await until(lambda: bool(process.controlnets.shelf.resident))

    assert process.controlnets.shelf.resident == (LAYOUT,)


async def test_a_drain_lets_open_streams_end_and_takes_no_new_ones(service: Service) -> None:
    stream = await service.client.open_stream(request_for(), 1, OPEN_S)
    draining = asyncio.create_task(service.process.controlnets.drain())
    await asyncio.sleep(0)

    with pytest.raises(Unavailable) as caught:
        await service.client.open_stream(request_for(), 1, OPEN_S)
    assert caught.value.reason == "DRAINING"
    received = await answer_to(stream, 0, 500.0, outgoing_tensor(latents(), UNBOUND))
    assert_equal(tensors_of(received), of_diffusers(EDGES, 500.0, 1.0))
    assert not draining.done()
    stream.close()
    await asyncio.wait_for(draining, 120)


async def test_status_lists_controlnets_and_resident_ones(service: Service) -> None:
    before = await service.client.status()
    assert {info.name for info in before.controlnets} == {EDGES, LAYOUT}
    assert not any(info.resident for info in before.controlnets)

    assert await service.client.prefetch([LAYOUT]) == (LAYOUT,)

    after = await service.client.status()
    assert [info.name for info in after.controlnets if info.resident] == [LAYOUT]
    assert (after.load_count, after.credit_count, after.draining) == (1, 32, False)
    with pytest.raises(NotFound):
        await service.client.prefetch(["none"])
