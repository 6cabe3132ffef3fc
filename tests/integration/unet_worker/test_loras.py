"""Test a worker with LoRAs of its directory: reported, loaded during the first steps, counted, refused."""

import asyncio
import json
import shutil
import threading
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file

from lab.fixtures.checkpoints import write_checkpoint
from lab.fixtures.lora_files import random_factors, write_diffusers_lora, write_kohya_lora, write_tensors
from pentimento.clients.guidance_half import GuidanceHalfClient, HalfStreamRequest
from pentimento.diffusion.families import load_model
from pentimento.diffusion.loras import BaseLayers, Lora, layers_of
from pentimento.domain.adapters import Adapter, AdapterKind, LoraUpload
from pentimento.domain.components import Tier
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, PentimentoError, Unavailable
from pentimento.domain.execution import AttemptResult
from pentimento.domain.fleet import AdapterPlacement, Capability, Plan, WorkerAssignment
from pentimento.domain.generation import LoraSelection, ObjectReference, PlanVersion
from pentimento.domain.weights import SwitchWay
from pentimento.files.ed25519_keys import read_private_key
from pentimento.files.signed_entries import signed_upload
from pentimento.profiles.document import (
    MeasuredAdapter,
    Profile,
    ProfileConditions,
    ProfiledModel,
    ProfileKind,
    ProfileRow,
    profiles_to_json,
)
from pentimento.rpc import watched_file
from pentimento.stores.objects import open_objects
from pentimento.tensors.cuda import outgoing_tensor
from pentimento.wire.tensors import UNBOUND
from services.unet_worker.adapters.lora_directory import LoraDirectory
from services.unet_worker.models.loaded import LoadedModel
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.requests import attempt, route, spec_with
from tests.integration.unet_worker.test_switching import credits_where, take
from tests.support.calls import result_of
from tests.unit.files.test_signed_entries import Keys

OPEN_S = 120.0


@pytest.fixture(scope="module")
def base(checkpoint: Path) -> BaseLayers:
    model = load_model(checkpoint, torch.device("cpu"), torch.float32)
    return layers_of(model.info.family, model.adaptable)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "other", prediction_type="epsilon")


@pytest.fixture
def adapters_dir(base: BaseLayers, tmp_path: Path) -> Path:
    """Return two fitting LoRAs, by file and by folder, one of another model, and a pickle."""
    directory = tmp_path / "loras"
    write_diffusers_lora(directory / "neon", random_factors(base, seed=1), alpha=5.0)
    write_kohya_lora(directory / "mosaic.safetensors", random_factors(base, seed=2, components=["unet"]), alpha=2.0)
    write_tensors(directory / "stranger.safetensors", {"unet.no_such.lora_A.weight": torch.zeros(2, 2)})
    (directory / "pickle.safetensors").write_bytes(b"\x80\x02ctorch\n")
    return directory


def neon_file(adapters_dir: Path) -> Path:
    return adapters_dir / "neon" / "pytorch_lora_weights.safetensors"


@pytest_asyncio.fixture
async def worker(checkpoint: Path, adapters_dir: Path, tmp_path: Path) -> AsyncIterator[Served]:
    async with serve(checkpoint, tmp_path, adapters_dir=adapters_dir) as served:
        yield served


async def selections(worker: Served, **scales: float) -> tuple[LoraSelection, ...]:
    told = (await anext(worker.client.watch_credits("frontdoor", 1))).known_adapters
    digests = {adapter.name: adapter.digest for adapter in told or ()}
    return tuple(LoraSelection(name, scale, digests[name]) for name, scale in scales.items())


async def generated(worker: Served, number: int, *loras: LoraSelection, **changes: Any) -> AttemptResult:
    spec = spec_with(loras=loras)
    way = replace(route(worker), **changes)
    result = await result_of(worker.client.execute(attempt(number), spec, way, worker.held.worker_generation))
    assert isinstance(result, AttemptResult)
    return result


async def test_credits_list_loras_of_the_workers_model(worker: Served) -> None:
    credits = await anext(worker.client.watch_credits("frontdoor", 1))

    assert Capability.LORA in credits.capabilities
    known = credits.known_adapters
    assert known is not None
    assert [(one.name, one.kind, one.family) for one in known] == [
        ("mosaic", AdapterKind.LORA, worker.held.family),
        ("neon", AdapterKind.LORA, worker.held.family),
    ]
    assert [(one.name, one.reason) for one in credits.rejected_adapters] == [
        ("pickle", "BAD_LORA"),
        ("stranger", "LORA_MISMATCH"),
    ]


async def test_loras_apply_only_to_their_image(worker: Served) -> None:
    neon = await selections(worker, neon=1.0)
    both = await selections(worker, neon=0.5, mosaic=1.0)

    plain = await generated(worker, 1)
    images = [await generated(worker, number, *loras) for number, loras in ((2, neon), (3, both))]
    again = [await generated(worker, 4), await generated(worker, 5, *neon)]

    assert len({plain.image_digest, *(one.image_digest for one in images)}) == 3
    assert [one.image_digest for one in again] == [plain.image_digest, images[0].image_digest]
    assert (plain.lora_patch_step, images[0].lora_patch_step) == (None, 0)
    credits = await anext(worker.client.watch_credits("frontdoor", 1))
    assert set(credits.resident_components) == {worker.held.model, "neon", "mosaic"}


async def test_lora_from_object_store_equals_its_file(checkpoint: Path, adapters_dir: Path, tmp_path: Path) -> None:
    """The worker has no directory of LoRAs: it fetches this one by the request's reference."""
    mosaic = read_lora_bytes(adapters_dir)
    place = tmp_path / "fetching"
    place.mkdir()
    async with serve(checkpoint, tmp_path, adapters_dir=adapters_dir) as reading:
        expected = await generated(reading, 1, *await selections(reading, mosaic=1.0))
    async with serve(checkpoint, place, component_cache_dir=place / "loras") as fetching:
        reference = open_objects(f"file://{place / 'objects'}").put("adapters/mosaic", mosaic)
        lora = LoraSelection("mosaic", 1.0, reference.digest, reference)
        result = await generated(fetching, 1, lora)
        credits = await anext(fetching.client.watch_credits("frontdoor", 1))
        with pytest.raises(Unavailable, match="ObjectMissing"):
            await generated(fetching, 2, gone(lora))

    assert result.image_digest == expected.image_digest
    assert credits.capabilities >= {Capability.UPLOADED_LORA}
    assert credits.resident_components == (fetching.held.model, "mosaic")
    assert [(one.digest, one.tier) for one in credits.component_changes] == [(reference.digest, Tier.HOST)]
    assert credits.all_components and credits.component_changes[0].size_bytes > 0
    assert [one.tier for one in credits.tier_speeds] == [Tier.STORE]


def read_lora_bytes(adapters_dir: Path) -> bytes:
    return (adapters_dir / "mosaic.safetensors").read_bytes()


def gone(lora: LoraSelection) -> LoraSelection:
    digest = "sha256:" + "0" * 64
    return replace(lora, digest=digest, object=ObjectReference("adapters/gone", digest, 100))


async def test_worker_with_keys_rejects_an_unsigned_lora_of_its_own_and_of_a_pairs_request(
    checkpoint: Path, adapters_dir: Path, tmp_path: Path
) -> None:
    keys, place = Keys(tmp_path), tmp_path / "served"
    place.mkdir()
    trusted = {"component_cache_dir": place / "loras", "registry_public_keys": keys.public("release")}
    async with serve(checkpoint, place, **trusted) as served:
        reference = served.objects.put("adapters/mosaic", read_lora_bytes(adapters_dir))
        lora = LoraSelection("mosaic", 1.0, reference.digest, reference)
        upload = LoraUpload("mosaic", served.held.family, "MIT", reference.size_bytes, reference.digest)
        entries = {
            key: signed_upload(upload, read_private_key(keys.private(key), "signing_key"), 1000).signed_entry
            for key in ("release", "stranger")
        }
        found, halves = {}, GuidanceHalfClient(served.channel)
        wrong = {"unsigned": lora, "stranger": replace(lora, signed_entry=entries["stranger"])}
        for number, (name, one) in enumerate(wrong.items()):
            with pytest.raises(FailedPrecondition) as refused:
                await generated(served, number + 1, one)
            with pytest.raises(FailedPrecondition) as refused_half:
                await halves.open_stream(half_for(served, one), 1, OPEN_S)
            found[name] = (refused.value.reason, refused_half.value.reason)
        plain = await generated(served, 3)
        signed = await generated(served, 4, replace(lora, signed_entry=entries["release"]))

    unknown = "UNKNOWN_SIGNING_KEY"
    assert found == {"unsigned": ("UNSIGNED_ENTRY", "UNSIGNED_ENTRY"), "stranger": (unknown, unknown)}
    assert signed.image_digest != plain.image_digest


def half_for(worker: Served, lora: LoraSelection) -> HalfStreamRequest:
    shape = worker.model.halves._halves.opening_shapes["text_states"][1]
    states = outgoing_tensor(torch.zeros(shape), UNBOUND)
    return HalfStreamRequest(attempt(9), worker.held.model_digest, 32, 32, 8, states, loras=(lora,))


async def test_prefetched_lora_is_resident_before_its_first_request(worker: Served) -> None:
    before = (await anext(worker.client.watch_credits("frontdoor", 1))).resident_components

    resident = await worker.client.prefetch(["neon", "nobody"])

    assert (set(before), set(resident)) == ({worker.held.model}, {worker.held.model, "neon"})


async def test_lora_load_does_not_delay_model_switch(
    checkpoint: Path, other: Path, adapters_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk, or the object store, may be slow: the next model needs the memory of the previous one."""
    begun, goes_on, read = asyncio.Event(), threading.Event(), LoraDirectory.read
    loop, gone = asyncio.get_running_loop(), []

    def read_slowly(self: LoraDirectory, digest: str) -> Lora:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait()
        return read(self, digest)

    monkeypatch.setattr(LoraDirectory, "read", read_slowly)
    # Only LoRAs that fit: others are logged, and pytest keeps the logged objects.
    shutil.copytree(adapters_dir / "neon", tmp_path / "fitting" / "neon")
    async with serve(checkpoint, tmp_path, adapters_dir=tmp_path / "fitting", other_models=(other,)) as served:
        model, load = weakref.ref(served.model.halves._halves._model), served.switch._loader.load

        async def loading(*given: Any) -> LoadedModel:
            gone.append(model() is None)
            return await load(*given)

        take(SwitchWay.UNLOAD_FIRST, monkeypatch)
        monkeypatch.setattr(served.switch._loader, "load", loading)
        ahead = asyncio.create_task(served.client.prefetch(["neon"]))
        try:
            await begun.wait()
            served.switch.assign("other", 8)
            await credits_where(served, served=True, model="other")
        finally:
            goes_on.set()

        assert gone == [True]
        assert (await ahead)[0] == "other"


async def test_planned_uploaded_lora_is_fetched_before_its_first_request(
    checkpoint: Path, adapters_dir: Path, tmp_path: Path
) -> None:
    """The plan also names a LoRA of another family, which this model cannot have."""
    async with serve(checkpoint, tmp_path, component_cache_dir=tmp_path / "fetched") as served:
        process, family = served.process, served.held.family
        mosaic = served.objects.put("adapters/mosaic", read_lora_bytes(adapters_dir))
        there = Adapter("mosaic", AdapterKind.LORA, mosaic.digest, family, object=mosaic)
        foreign = gone(LoraSelection("foreign", 1.0, "", mosaic))
        other = Adapter("foreign", AdapterKind.LORA, foreign.digest, "another", object=foreign.object)
        name = process.server.instance_id
        wanted = WorkerAssignment(name, "", served.held.model, 0, prefetch=("foreign", "mosaic"))
        placements = tuple(AdapterPlacement(one, (name,)) for one in (other, there))

        process.follow(served.switch, Plan(PlanVersion(1, 1), (wanted,), placements=placements))
        await asyncio.gather(*process._background)

        credits = await anext(served.client.watch_credits("frontdoor", 1))
        assert credits.resident_components == (served.held.model, "mosaic")
        assert len(list((tmp_path / "fetched" / "blobs").iterdir())) == 1


async def test_lora_file_is_read_at_first_use(
    checkpoint: Path, adapters_dir: Path, base: BaseLayers, tmp_path: Path
) -> None:
    """Its header is valid and its numbers are not, which appears only when they are read."""
    infinite = {key: torch.full_like(tensor, torch.inf) for key, tensor in load_file(neon_file(adapters_dir)).items()}
    write_tensors(adapters_dir / "infinite.safetensors", infinite)
    place = tmp_path / "started"
    place.mkdir()
    async with serve(checkpoint, place, adapters_dir=adapters_dir) as served:
        (selected,) = await selections(served, infinite=1.0)
        plain = await generated(served, 1)

        with pytest.raises(FailedPrecondition, match="not finite") as failed:
            await generated(served, 2, selected)

        assert failed.value.reason == "BAD_LORA"
        assert await served.client.prefetch(["infinite"]) == (served.held.model,)
        assert (await generated(served, 3)).image_digest == plain.image_digest


async def test_replay_applies_loras_at_the_recorded_step(worker: Served) -> None:
    (neon,) = await selections(worker, neon=1.0)

    late = await generated(worker, 1, neon, lora_patch_step=2, replay_of="other")
    early = await generated(worker, 2, neon, lora_patch_step=0, replay_of="other")
    again = await generated(worker, 3, neon, lora_patch_step=2, replay_of="other")

    assert (late.lora_patch_step, early.lora_patch_step) == (2, 0)
    assert late.image_digest == again.image_digest != early.image_digest


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ({"name": "../../etc/passwd"}, NotFound, "UNKNOWN_LORA"),
        ({"digest": "sha256:" + "0" * 64}, NotFound, "UNKNOWN_LORA"),
        ({"scale": float("nan")}, InvalidArgument, "INVALID_FIELD"),
    ],
)
async def test_absent_lora_is_refused(
    change: dict[str, Any], kind: type[PentimentoError], reason: str, worker: Served
) -> None:
    (neon,) = await selections(worker, neon=1.0)
    asked = LoraSelection(**{"name": neon.name, "scale": 1.0, "digest": neon.digest, **change})

    with pytest.raises(kind) as refused:
        await generated(worker, 1, asked)

    assert refused.value.reason == reason


async def test_changed_lora_file_fails_only_its_request(worker: Served, adapters_dir: Path) -> None:
    (neon,) = await selections(worker, neon=1.0)
    plain = await generated(worker, 1)
    shutil.copy(adapters_dir / "mosaic.safetensors", neon_file(adapters_dir))

    with pytest.raises(FailedPrecondition) as failed:
        await generated(worker, 2, neon)

    assert failed.value.reason == "BAD_LORA"
    assert (await generated(worker, 3)).image_digest == plain.image_digest


async def test_registry_names_loras_and_bounds_limit_lateness(
    checkpoint: Path, adapters_dir: Path, worker: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)
    (neon,) = await selections(worker, neon=1.0)
    entries = [
        {
            "kind": "lora",
            "name": "neon",
            "path": "neon",
            "licence": "MIT",
            "base": {"digest": worker.held.model_digest},
        },
        {"kind": "lora", "name": "other-base", "path": "neon", "base": {"digest": "sha256:" + "1" * 64}},
        {"kind": "lora", "name": "changed", "path": "neon", "digest": "sha256:" + "2" * 64},
        {"kind": "lora", "name": "no-digest", "path": "neon", "digest": "2"},
        {"kind": "pipeline", "name": "tiny", "path": "tiny"},
    ]
    (adapters_dir / "registry.json").write_text(json.dumps({"models": entries}))
    # A given file of bounds has precedence over the one in the LoRAs' directory.
    (adapters_dir / "lora-bounds.json").write_text("no bounds")
    bounds = tmp_path / "bounds.json"
    measured = ProfiledModel("", worker.held.model_digest, adapters=(MeasuredAdapter(neon.digest),))
    row = ProfileRow({"steps": 5}, allowed={"lower_bound": 5})
    bounds.write_text(profiles_to_json(Profile(ProfileKind.LORA, measured, ProfileConditions(20), rows=(row,))))

    second = tmp_path / "second"
    second.mkdir()
    async with serve(checkpoint, second, adapters_dir=adapters_dir, profiles=(bounds,)) as served:
        known = (await anext(served.client.watch_credits("frontdoor", 1))).known_adapters

        (changed,) = await selections(served, changed=1.0)
        with pytest.raises(FailedPrecondition, match="its digest is") as failed:
            await generated(served, 1, changed)
        row = ProfileRow({"steps": 8}, allowed={"lower_bound": 8})
        bounds.write_text(profiles_to_json(Profile(ProfileKind.LORA, measured, ProfileConditions(20), rows=(row,))))
        measured_again = (await anext(served.client.watch_credits("frontdoor", 1))).known_adapters

    assert known is not None
    assert [(one.name, one.licence, one.latest_start_fraction) for one in known] == [
        ("neon", "MIT", 0.25),
        ("changed", "", 0.0),
    ]
    assert [one.latest_start_fraction for one in measured_again or ()] == [0.4, 0.0]
    assert failed.value.reason == "BAD_LORA"


async def test_malformed_bounds_file_stops_the_start(checkpoint: Path, adapters_dir: Path, tmp_path: Path) -> None:
    bounds = tmp_path / "bounds.json"
    bounds.write_text('{"format": 2, "profiles": [1]}')

    with pytest.raises(InvalidArgument, match="profiles: "):
        async with serve(checkpoint, tmp_path, adapters_dir=adapters_dir, profiles=(bounds,)):
            pass
