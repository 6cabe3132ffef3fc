"""Test a request's LoRAs and ControlNets on their way from the client to the worker: resolved, stored, part of cache
keys, and replayed."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, settings_of, until
from lab.fixtures.held_models import HELD
from lab.fixtures.paced_worker import PacedWorker, serve
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.fleet import AdapterPlacement, Capability, Plan, ReplicaKind, ServiceEndpoint
from pentimento.domain.generation import (
    ControlNetMode,
    ControlNetSelection,
    GenerationSpec,
    LoraSelection,
    PlanVersion,
    Route,
)
from pentimento.domain.image_request import (
    AskedControlNet,
    AskedLora,
    Completed,
    ImageRequest,
    ReplayInput,
    ReplayRequest,
)
from pentimento.policies.residual_pipelining import PipeliningMode
from pentimento.profiles.catalogue import ProfileSet
from pentimento.profiles.document import profiles_to_json
from pentimento.sdk.generated_image import GeneratedImage, read_provenance
from pentimento.stores.ledger import open_journal
from pentimento.stores.objects.store import digest_of
from pentimento.wire.codec import decode, to_bytes
from tests.integration.frontdoor.cache_parts import ChosenEmbedder, ChosenGateway, serve_cache
from tests.support.calls import last_completed
from tests.support.profiles import EDGES as MEASURED_EDGES
from tests.support.profiles import PIPELINING_PROFILE, changed

NEON = Adapter("neon", AdapterKind.LORA, "sha256:neon", HELD.family, HELD.model_digest, latest_start_fraction=0.2)
MOSAIC = Adapter("mosaic", AdapterKind.LORA, "sha256:mosaic", HELD.family)
EDGES = Adapter("edges", AdapterKind.CONTROLNET, "sha256:edges", HELD.family, HELD.model_digest)
PLAN = Plan(
    PlanVersion(1, 1),
    endpoints=tuple(ServiceEndpoint(ReplicaKind.CONTROLNET, name, f"unix:/{name}") for name in ("c1", "c2")),
    placements=(AdapterPlacement(EDGES, ("c1", "c2"), ("c2",)),),
)


def png(colour: str = "white") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (HELD.default_width_px, HELD.default_height_px), colour).save(buffer, "png")
    return buffer.getvalue()


STYLED = replace(REQUEST, loras=(AskedLora("neon", 0.5),))
CONTROLLED = replace(STYLED, controlnets=(AskedControlNet("edges", png()),))


@asynccontextmanager
async def suite_with_adapters(folder: Path, worker: PacedWorker, **changes: Any) -> AsyncIterator[FrontdoorSuite]:
    """Run a frontdoor with LoRAs on its worker, and a ControlNet's address in its journal."""
    worker.known_adapters = (NEON, MOSAIC)
    worker.change()
    journal = open_journal(settings_of(folder).ledger_url)
    journal.save_plan(to_bytes(PLAN, controller_pb.Plan)).result()
    journal.close()
    async with running_suite(folder, **changes) as running:
        yield running


@pytest.fixture
async def adapted(folder: Path, worker: PacedWorker) -> AsyncIterator[FrontdoorSuite]:
    async with suite_with_adapters(folder, worker) as running:
        yield running


async def test_adapters_reach_worker_and_provenance(
    adapted: FrontdoorSuite, worker: PacedWorker, tmp_path: Path
) -> None:
    assert await adapted.client.list_adapters() == (EDGES, MOSAIC, NEON)
    completed = await adapted.paint(CONTROLLED)

    (order,) = worker.orders
    spec = decode(order.spec, GenerationSpec)
    assert spec.loras == (LoraSelection("neon", 0.5, NEON.digest),)
    assert spec.controlnets == (ControlNetSelection("edges", png(), digest=EDGES.digest),)
    endpoints = [(end.name, end.address, end.controlnet_digest) for end in order.controlnet_endpoints]
    assert endpoints == [("edges", "unix:/c2", EDGES.digest), ("edges", "unix:/c1", EDGES.digest)]
    provenance = completed.provenance
    assert [lora.digest for lora in provenance.spec.loras] == [NEON.digest]
    assert [(part.field, part.object.digest) for part in provenance.inputs] == [
        ("controlnets[0].conditioning_image", digest_of(png()))
    ]
    saved = replace(GeneratedImage.of(completed), data=png()).save(tmp_path / "image.png")
    found = read_provenance(saved.read_bytes())["spec"]
    neon = {"name": "neon", "scale": 0.5, "digest": NEON.digest, "object": None, "signed_entry": ""}
    assert found["loras"] == [neon]
    assert (found["controlnets"][0]["name"], found["controlnets"][0]["digest"]) == ("edges", EDGES.digest)


DAMAGED = AskedControlNet("edges", png()[:60] + bytes(8) + png()[68:])
REFUSED: tuple[tuple[ImageRequest, str, str], ...] = (
    (replace(CONTROLLED, controlnets=(*CONTROLLED.controlnets, DAMAGED)), "", "controlnets[1].conditioning_image"),
    (replace(CONTROLLED, width_px=64), "", "controlnets[0].conditioning_image"),
    (replace(REQUEST, loras=(AskedLora("neon", float("nan")),)), "", "loras[0].scale"),
    (replace(REQUEST, loras=(AskedLora("edges"),)), "UNKNOWN_LORA", "loras[0].name"),
    (replace(REQUEST, loras=(AskedLora("no-such"),)), "UNKNOWN_LORA", "loras[0].name"),
    (replace(REQUEST, model="no-such"), "UNKNOWN_MODEL", "model"),
    (
        replace(REQUEST, controlnets=(AskedControlNet("no-such", b"png"),)),
        "UNKNOWN_CONTROLNET",
        "controlnets[0].name",
    ),
)


async def test_wrong_or_unknown_adapters_are_refused_by_field(adapted: FrontdoorSuite) -> None:
    for request, reason, field in REFUSED:
        with pytest.raises(NotFound if reason else InvalidArgument) as caught:
            await adapted.paint(request)
        assert reason in ("", caught.value.reason)
        assert [one.field for one in caught.value.violations] == [field]
        assert "must be a whole PNG image" in caught.value.message or "[1]" not in field

    assert (await adapted.operator.status()).accepted_count == 0


async def test_unusable_lora_ends_request_without_retry(adapted: FrontdoorSuite, worker: PacedWorker) -> None:
    """A retry every second until the deadline would each time delay other requests."""
    worker.fail_with = FailedPrecondition("BAD_LORA", "neon.safetensors: holds numbers that are not finite")

    with pytest.raises(FailedPrecondition, match="not finite") as caught:
        await adapted.paint(STYLED)

    assert caught.value.reason == "BAD_LORA"


async def test_latest_start_of_lora_is_part_of_route(adapted: FrontdoorSuite, worker: PacedWorker) -> None:
    await adapted.paint(replace(STYLED, num_inference_steps=50))
    await adapted.paint(replace(STYLED, num_inference_steps=50, loras=(AskedLora("neon"), AskedLora("mosaic"))))

    assert [order.route.lora_patch_step for order in worker.orders] == [10, 0]


PROFILE = changed(
    PIPELINING_PROFILE, model_digest=HELD.model_digest, adapters=(replace(MEASURED_EDGES, digest=EDGES.digest),)
)


@asynccontextmanager
async def pipelining_suite(folder: Path, worker: PacedWorker, **changes: Any) -> AsyncIterator[FrontdoorSuite]:
    """Run a suite with a profile of its model and ControlNet."""
    path = folder / "pipelining.json"
    path.write_text(profiles_to_json(PROFILE))
    async with suite_with_adapters(folder, worker, profiles=(path,), **changes) as running:
        yield running


def modes(worker: PacedWorker) -> list[tuple[ControlNetMode | None, int]]:
    routes = [decode(order.route, Route) for order in worker.orders]
    return [(route.controlnet_mode, route.pipelined_from_step) for route in routes]


async def test_automatic_mode_pipelines_after_measured_waits(folder: Path, worker: PacedWorker) -> None:
    asked = replace(CONTROLLED, num_inference_steps=50)
    async with pipelining_suite(folder, worker) as suite:
        await suite.paint(asked)
        worker.residual_wait_share = 0.4
        await suite.paint(replace(asked, seed=2))
        generated = await suite.paint(replace(asked, seed=3))
        await suite.paint(replace(asked, seed=4, num_inference_steps=49))
        await suite.paint(replace(STYLED, num_inference_steps=50))
        worker.residual_wait_share = 0.0
        for seed in range(5, 13):
            await suite.paint(replace(asked, seed=seed))

    synchronous, pipelined = (ControlNetMode.SYNCHRONOUS, 0), (ControlNetMode.PIPELINED, 4)
    assert modes(worker)[:5] == [synchronous, synchronous, pipelined, synchronous, (None, 0)]
    assert modes(worker)[5:] == [pipelined] * 7 + [synchronous]
    route = generated.provenance.route
    assert (route.controlnet_mode, route.pipelined_from_step) == pipelined


@pytest.mark.parametrize(
    ("mode", "wanted", "why"),
    [
        ("on", (ControlNetMode.PIPELINED, 4), "residuals: one step old from step 4, by the settings"),
        ("off", (ControlNetMode.SYNCHRONOUS, 0), "residuals: each step waits for its own, OFF: pipelining is off"),
    ],
)
async def test_set_mode_decides_and_replay_repeats_it(
    folder: Path, worker: PacedWorker, mode: str, wanted: tuple[ControlNetMode, int], why: str
) -> None:
    worker.residual_wait_share = 0.9
    inputs = (ReplayInput("controlnets[0].conditioning_image", png()),)
    async with pipelining_suite(folder, worker, controlnet_pipelining=PipeliningMode(mode)) as suite:
        for seed in (1, 2):
            first = await suite.paint(replace(CONTROLLED, num_inference_steps=50, seed=seed))
        explained = await suite.client.explain(replace(CONTROLLED, num_inference_steps=50))
        suite.frontdoor.api.arrivals.rules.pipelining._profiles = ProfileSet()  # a replay needs no profile
        async for _ in suite.client.replay(ReplayRequest(first.request_id, inputs)):
            pass

    assert modes(worker) == [wanted] * 3
    assert (explained.route.controlnet_mode, explained.route.pipelined_from_step) == wanted
    assert [reason for reason in explained.reasons if reason.startswith("residuals: ")] == [why]


async def test_error_without_fitting_worker_names_missing_adapter(folder: Path, worker: PacedWorker) -> None:
    worker.capabilities = frozenset()
    async with suite_with_adapters(folder, worker) as suite:
        for request in (STYLED, replace(REQUEST, controlnets=CONTROLLED.controlnets)):
            with pytest.raises(FailedPrecondition, match="no worker of this deployment"):
                await suite.paint(request)
        assert await suite.client.list_adapters() == ()
        worker.capabilities = frozenset(Capability)
        worker.change()
        await until(lambda: bool(suite.frontdoor.fleet.adapters.offered()))
        await suite.paint(CONTROLLED)


async def test_request_goes_to_worker_with_its_lora(folder: Path, worker: PacedWorker) -> None:
    other = PacedWorker("w2", credit_count=4)
    server = await serve(other, f"unix:{folder / 'w2'}")
    addresses = tuple(f"unix:{folder / name}" for name in ("w1", "w2"))
    async with suite_with_adapters(folder, worker, worker_addresses=addresses) as suite:
        await suite.wait_for_workers(2)
        await asyncio.gather(*(suite.paint(replace(STYLED, seed=seed)) for seed in range(4)))
    await server.stop()

    assert (len(worker.executed), len(other.executed)) == (4, 0)


async def test_restarted_frontdoor_uses_same_weights(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with suite_with_adapters(folder, worker) as suite:
        stream = suite.client.generate(CONTROLLED, "key")
        request_id = await suite.accepted(stream)
        await worker.wait_until(lambda: worker.running)
    worker.running.clear()
    worker.known_adapters = (replace(NEON, digest="sha256:newer"),)
    worker.hold.set()

    async with running_suite(folder, orphan_wait_s=0.0) as suite:
        await suite.wait_for_workers(1)
        assert len(worker.orders) == 1  # a worker with other weights under that name does not get the request
        worker.known_adapters = (NEON, MOSAIC)
        worker.change()
        last = await last_completed(suite.client.generate(CONTROLLED, "key"))

    assert last.request_id == request_id
    first, second = (decode(order.spec, GenerationSpec) for order in worker.orders)
    assert second == first and second.controlnets[0].conditioning_image == png()
    assert len(worker.orders[1].controlnet_endpoints) == 2


async def test_replay_uses_same_weights_or_fails(adapted: FrontdoorSuite, worker: PacedWorker) -> None:
    first = await adapted.paint(CONTROLLED)
    inputs = (ReplayInput("controlnets[0].conditioning_image", png()),)
    again = [event async for event in adapted.client.replay(ReplayRequest(first.request_id, inputs))][-1]
    assert isinstance(again, Completed) and again.provenance.replay_equal
    assert worker.executed[1] == worker.executed[0]

    with pytest.raises(InvalidArgument, match="conditioning_image"):
        _ = [event async for event in adapted.client.replay(ReplayRequest(first.request_id))]
    # As after a restart of the frontdoor, which has not seen the first weights.
    adapted.frontdoor.fleet.adapters._known.clear()
    worker.known_adapters = (replace(NEON, digest="sha256:newer"),)
    worker.change()
    await until(lambda: bool(adapted.frontdoor.fleet.adapters.find(AdapterKind.LORA, "neon")))
    with pytest.raises(FailedPrecondition) as caught:
        _ = [event async for event in adapted.client.replay(ReplayRequest(first.request_id, inputs))]
    assert caught.value.reason == "ADAPTER_CHANGED"


async def test_lookup_scope_contains_adapters(folder: Path, worker: PacedWorker) -> None:
    gateway, address = ChosenGateway(), f"unix:{folder / 'c'}"
    cache = await serve_cache(ChosenEmbedder(), gateway, address)
    net = CONTROLLED.controlnets[0]
    asked = [
        REQUEST,
        STYLED,
        replace(STYLED, loras=(AskedLora("neon", 0.6),)),
        replace(STYLED, loras=(AskedLora("mosaic", 0.5),)),
        CONTROLLED,
        replace(CONTROLLED, controlnets=(replace(net, conditioning_image=png("black")),)),
        replace(CONTROLLED, controlnets=(replace(net, conditioning_scale=0.5),)),
        replace(CONTROLLED, controlnets=(replace(net, end_fraction=0.5),)),
    ]
    async with suite_with_adapters(folder, worker, embedder_address=(address,), gateway_address=address) as suite:
        for request in asked:
            await suite.paint(replace(request, num_inference_steps=50))
    await cache.stop()

    scopes = [lookup.candidates[0].scope for lookup in gateway.lookups]
    assert [scope.adapters_from_step for scope in scopes] == [0, 10, 10, 0, 10, 10, 10, 10]
    plain, styled, heavier, mosaic, controlled, other_image, other_scale, other_end = scopes
    assert not (plain.adapters_digest or plain.conditioning_digest or plain.control_digest)
    assert len({scope.adapters_digest for scope in (plain, styled, heavier, mosaic)}) == 4
    assert controlled.adapters_digest == styled.adapters_digest
    assert len({scope.conditioning_digest for scope in (plain, controlled, other_image)}) == 3
    for other in (other_scale, other_end):
        assert other.conditioning_digest == controlled.conditioning_digest
    assert len({scope.control_digest for scope in (plain, controlled, other_scale, other_end)}) == 4
    # An attempt reserves in the scope of its lookup.
    assert [reserve.scope for reserve in gateway.reserved] == scopes


@pytest.mark.parametrize(("loras_after", "kept"), [(10, [5, 10, 15, 20, 25]), (5, [5, 15, 20, 25]), (0, [15, 20, 25])])
async def test_latents_after_lora_start_are_not_stored_without_it(
    folder: Path, worker: PacedWorker, loras_after: int, kept: list[int]
) -> None:
    """The LoRA may start after ten steps but started earlier: its latents must not be stored under the key without
    it."""
    gateway, address = ChosenGateway(), f"unix:{folder / 'c'}"
    cache = await serve_cache(ChosenEmbedder(), gateway, address)
    worker.loras_after = loras_after
    async with suite_with_adapters(folder, worker, embedder_address=(address,), gateway_address=address) as suite:
        await suite.paint(replace(STYLED, num_inference_steps=50))
        await gateway.wait_until(lambda: gateway.committed)
    await cache.stop()

    assert gateway.committed[0].scope.adapters_from_step == 10
    assert [latent.resume_step for latent in gateway.committed[0].entries.latents] == kept
