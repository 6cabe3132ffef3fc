"""Test a worker that a plan assigns another model, with real checkpoints."""

import asyncio
import hashlib
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.devices.choices import TextEncoderPlace
from pentimento.diffusion.engine import MemoryProbe
from pentimento.domain.components import GB, Tier
from pentimento.domain.errors import ResourceExhausted
from pentimento.domain.execution import AttemptResult, WorkerCredits
from pentimento.domain.fleet import Replica, ReplicaKind
from pentimento.domain.generation import FromNoise, Route
from pentimento.domain.weights import ShortModel, SwitchWay
from pentimento.files.adapter_registry import LORA_BOUNDS_FILE
from services.unet_worker.models import checkpoint_loading, model_switch
from services.unet_worker.models.checkpoint_loading import Placement
from services.unet_worker.models.loaded import LoadedModel
from tests.integration.unet_worker.conftest import Served, at_step, serve
from tests.integration.unet_worker.requests import SPEC, attempt, execute
from tests.support.calls import result_of

REPLICA = Replica("w", ReplicaKind.UNET_WORKER, "unix:/w", 1)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "other", prediction_type="epsilon")


@pytest.fixture
async def switching(checkpoint: Path, other: Path, directory: Path) -> AsyncIterator[Served]:
    async with serve(checkpoint, directory, other_models=(other,)) as served:
        yield served


async def credits_where(worker: Served, served: bool, model: str = "") -> WorkerCredits:
    """Wait until the worker takes attempts, or none."""
    async with asyncio.timeout(120):
        async for credits in worker.client.watch_credits("frontdoor", 1):
            if bool(credits.credit_count) == served and model in ("", credits.held.model):
                return credits
    raise AssertionError("the stream ended")


async def generate(worker: Served, request_id: str) -> AttemptResult:
    """Generate with the model that the worker holds."""
    held = worker.held
    route = Route("route", FromNoise(), held.model, held.model_digest)
    one, spec = attempt(request_id=request_id), replace(SPEC, model=held.model)
    return await result_of(worker.client.execute(one, spec, route, held.worker_generation))


@contextmanager
def held_in_its_steps() -> Iterator[threading.Event]:
    """Hold the next image at its first step until the event is set; leaving the context sets it."""
    goes_on = threading.Event()
    with at_step(1, goes_on.wait):
        try:
            yield goes_on
        finally:
            goes_on.set()


@pytest.fixture(params=list(SwitchWay), ids=lambda way: way.value)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SwitchWay:
    """Choose the way to switch by the memory that the worker finds free."""
    wanted: SwitchWay = request.param
    take(wanted, monkeypatch)
    return wanted


def take(way: SwitchWay, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 2**40
    monkeypatch.setattr(checkpoint_loading, "free_host_bytes", lambda: 0 if way is SwitchWay.UNLOAD_FIRST else free)
    device_bytes = free if way is SwitchWay.BESIDE else 0
    monkeypatch.setattr(checkpoint_loading, "free_device_bytes", lambda device, budget: device_bytes)


async def until_settled(worker: Served) -> None:
    """Wait until no switch runs and the former model is freed."""
    while worker.switch._switch is not None:  # noqa: ASYNC110 - other threads load
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", [SwitchWay.STAGED, SwitchWay.UNLOAD_FIRST], indirect=True)
async def test_switch_without_room_on_the_device_finishes_running_requests_first(
    switching: Served, way: SwitchWay
) -> None:
    before = switching.held
    with held_in_its_steps() as goes_on:
        running = asyncio.ensure_future(result_of(execute(switching)))
        while not switching.switch.running_count:  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.01)

        switching.switch.assign("other", 8)

        assert (await credits_where(switching, served=False)).held == before
        with pytest.raises(ResourceExhausted) as refused:
            await result_of(execute(switching, attempt=attempt(request_id="late")))
        assert refused.value.reason == "NO_CREDIT"
        goes_on.set()
        assert (await running).model_digest == before.model_digest
    held = (await credits_where(switching, served=True, model="other")).held
    assert (held.model, held.worker_generation) == ("other", before.worker_generation)
    generated = await generate(switching, "after")
    assert generated.model_digest == held.model_digest != before.model_digest


async def test_switch_in_parallel_serves_next_model_during_former_requests(
    switching: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(SwitchWay.BESIDE, monkeypatch)
    before, engines_before = switching.held, engines()
    with held_in_its_steps() as goes_on:
        running = asyncio.ensure_future(result_of(execute(switching)))
        while not switching.switch.running_count:  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.01)

        switching.switch.assign("other", 8)
        credits = await credits_where(switching, served=True, model="other")
        meanwhile = await generate(switching, "meanwhile")

        assert (credits.running_count, running.done()) == (1, False)
        assert meanwhile.model_digest == credits.held.model_digest != before.model_digest
        goes_on.set()
        assert (await running).model_digest == before.model_digest
    await until_settled(switching)
    assert len(engines() - engines_before) == 1 and not engines_before <= engines()


async def test_switched_worker_generates_as_one_that_held_the_model_all_along(
    switching: Served, other: Path, way: SwitchWay
) -> None:
    switching.switch.assign("other", 8)
    await credits_where(switching, served=True, model="other")
    switched = await generate(switching, "switched")

    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with serve(other, Path(folder)) as fresh:
            always = await generate(fresh, "always")

    assert hashlib.sha256(switched.image).digest() == hashlib.sha256(always.image).digest()


ORDER = {
    SwitchWay.BESIDE: ["loads", "gives back"],
    SwitchWay.STAGED: ["stages", "gives back", "loads"],
    SwitchWay.UNLOAD_FIRST: ["gives back", "loads"],
}


async def test_switch_gives_the_former_models_memory_back_before_it_needs_it(
    switching: Served, way: SwitchWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, loader = [], switching.switch._loader
    load, stage = loader.load, loader.stage

    async def loading(name: str, staged: Placement | None = None, beside: LoadedModel | None = None) -> LoadedModel:
        done.append("loads")
        return await load(name, staged, beside)

    async def staging_noted(name: str) -> Placement:
        done.append("stages")
        return await stage(name)

    monkeypatch.setattr(model_switch, "trim_heap", lambda: done.append("gives back"))
    monkeypatch.setattr(loader, "load", loading)
    monkeypatch.setattr(loader, "stage", staging_noted)
    networks = switching.model.networks
    switching.switch.assign("other", 8)
    await credits_where(switching, served=True, model="other")
    await until_settled(switching)

    assert done == ORDER[way]
    assert networks.keys() == {"unet", "vae", "text_encoder"}
    assert not any(tensor.nbytes for network in networks.values() for tensor in network.state_dict().values())
    change = switching.process._describe(REPLICA, switching.switch, ()).change
    assert change is not None and (change.model, change.way) == ("other", way)
    assert switching.switch.load_s.keys() == {"other"}


@pytest.mark.parametrize("way", [SwitchWay.BESIDE, SwitchWay.STAGED], indirect=True)
async def test_unplanned_staged_model_is_dropped(
    switching: Served, way: SwitchWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, engines_before, goes_on, loader = switching.held, engines(), asyncio.Event(), switching.switch._loader
    load, stage = loader.load, loader.stage

    async def loading(name: str, staged: Placement | None = None, beside: LoadedModel | None = None) -> LoadedModel:
        loaded = await load(name, staged, beside)
        await goes_on.wait()
        return loaded

    async def staging_noted(name: str) -> Placement:
        staged = await stage(name)
        await goes_on.wait()
        return staged

    monkeypatch.setattr(loader, "load", loading)
    monkeypatch.setattr(loader, "stage", staging_noted)
    switching.switch.assign("other", 8)
    during = await generate(switching, "during")
    switching.switch.assign("tiny", 8)
    goes_on.set()
    await until_settled(switching)

    assert during.model_digest == before.model_digest
    assert (switching.held, engines(), switching.switch.load_s) == (before, engines_before, {})
    assert (await generate(switching, "after")).model_digest == before.model_digest


async def test_switch_without_memory_for_two_models_unloads_first(
    switching: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(SwitchWay.BESIDE, monkeypatch)
    load, besides = switching.switch._loader.load, []

    async def loading(name: str, staged: Placement | None = None, beside: LoadedModel | None = None) -> LoadedModel:
        besides.append(beside is not None)
        if beside is not None:
            raise torch.OutOfMemoryError
        return await load(name, staged)

    monkeypatch.setattr(switching.switch._loader, "load", loading)
    switching.switch.assign("other", 8)

    assert (await credits_where(switching, served=True, model="other")).held.model == "other"
    assert besides == [True, False]
    assert switching.switch.change is not None and switching.switch.change.way is SwitchWay.UNLOAD_FIRST


async def test_model_held_again_is_not_measured_again(
    switching: Served, way: SwitchWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, measure = [], MemoryProbe.measure_next

    def counted(probe: MemoryProbe, *given: Any) -> None:
        measured.append(probe._model.info.model_digest)
        measure(probe, *given)

    first, limit = switching.held, switching.switch.batch_limit
    monkeypatch.setattr(MemoryProbe, "measure_next", counted)
    for name in ("other", "tiny"):
        switching.switch.assign(name, 0)
        await credits_where(switching, served=True, model=name)
        await until_settled(switching)

    assert measured and first.model_digest not in measured
    assert (switching.held, switching.switch.batch_limit) == (first, limit)


@pytest.mark.parametrize("name", ["broken", "other"], ids=["no model", "another digest"])
async def test_unloadable_model_is_not_tried_again(
    checkpoint: Path, other: Path, directory: Path, tmp_path: Path, way: SwitchWay, name: str
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model_index.json").write_text("{}")
    wrong = tmp_path / "broken" if name == "broken" else Path(f"{other}@sha256:{'0' * 64}")
    async with serve(checkpoint, directory, other_models=(wrong,)) as worker:
        seen: list[int] = []
        watching = asyncio.ensure_future(note_credits(worker, seen))
        worker.switch.assign(name, 8)
        await until_settled(worker)
        held = (await credits_where(worker, served=True)).held

        worker.switch.assign(name, 8)
        registered = worker.process._describe(REPLICA, worker.switch, ())
        assert (held.model, worker.switch.target_model) == ("tiny", "tiny")
        assert registered.available_models == ("tiny",)
        assert (await generate(worker, "after")).model_digest == held.model_digest
        watching.cancel()
        # Without room for it, a model can be read only once the current one has left.
        assert (0 in seen) == (way is SwitchWay.UNLOAD_FIRST and name == "other")


async def note_credits(worker: Served, seen: list[int]) -> None:
    async for credits in worker.client.watch_credits("observer", 1):
        seen.append(credits.credit_count)


async def test_model_beyond_memory_is_never_loaded(
    checkpoint: Path, other: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = ShortModel("other", 2, 1)
    fits = (TextEncoderPlace.DEVICE, None)
    monkeypatch.setattr(
        checkpoint_loading, "fitted", lambda path, *_: (TextEncoderPlace.DEVICE, lacking) if path == other else fits
    )
    async with serve(checkpoint, directory, other_models=(other,)) as worker:
        worker.switch.assign("other", 8)

        registered = worker.process._describe(REPLICA, worker.switch, ())
        assert worker.switch.target_model == "tiny"
        assert (registered.available_models, registered.short_models) == (("tiny",), (lacking,))
        assert {one.component for one in registered.weights} == {"unet", "vae", "text_encoder"}


async def test_worker_reports_encoder_in_host_memory_and_generates_same_image(
    checkpoint: Path, directory: Path
) -> None:
    results = []
    for place in (TextEncoderPlace.DEVICE, TextEncoderPlace.HOST):
        async with serve(checkpoint, directory, text_encoders=place) as worker:
            replica = Replica("w", ReplicaKind.UNET_WORKER, "unix:/w", 1)
            weights = worker.process._describe(replica, worker.switch, ()).weights
            image = await generate(worker, place.value)
        results.append(({one.component for one in weights if one.in_host_memory}, image.image_digest))

    (nothing, digest), (moved, same) = results
    assert (nothing, moved) == (set(), {"text_encoder"})
    assert same == digest


def without_numbers(checkpoint: Path) -> Path:
    """Return the checkpoint with a denoiser that computes NaN: it loads, and fails at its first image."""
    file = checkpoint / "unet" / "diffusion_pytorch_model.safetensors"
    weights = {name: torch.full_like(weight, torch.nan) for name, weight in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    return checkpoint


def engines() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "step-engine"}


@pytest.mark.parametrize("fails_at", ["its LoRAs", "its first picture"])
async def test_model_failing_after_engine_start_leaves_no_engine(
    checkpoint: Path, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: SwitchWay, fails_at: str
) -> None:
    other, bounds = write_checkpoint(tmp_path / "other", prediction_type="epsilon"), tmp_path / LORA_BOUNDS_FILE
    engines_beside = engines()
    async with serve(checkpoint, directory, other_models=(other,), adapters_dir=tmp_path) as worker:
        running, load = [], worker.switch._loader.load
        assert len(engines() - engines_beside) == 1
        if fails_at == "its LoRAs":
            bounds.write_text("no bounds")
        else:
            without_numbers(other)

        async def loading(name: str, staged: Placement | None = None, beside: LoadedModel | None = None) -> LoadedModel:
            running.append(len(engines() - engines_beside))
            if name == "tiny":
                bounds.unlink(missing_ok=True)
            return await load(name, staged, beside)

        monkeypatch.setattr(worker.switch._loader, "load", loading)
        worker.switch.assign("other", 8)
        await until_settled(worker)
        await credits_where(worker, served=True, model="tiny")

        # If it fits next to the former model, the former engine keeps running; otherwise the former model is loaded
        # again.
        assert running == ([1] if way is SwitchWay.BESIDE else [0, 0])
        assert len(engines() - engines_beside) == 1


async def test_plan_bounds_its_batches_and_never_widens_them(worker: Served) -> None:
    limits = []
    for most in (2, 1000, 2, 0):
        worker.switch.assign("tiny", most)
        limits.append(worker.switch.batch_limit)

    assert limits == [2, 8, 2, 8]


@pytest.mark.parametrize("way", list(SwitchWay), indirect=True)
async def test_switch_measures_the_tier_of_the_models_files(switching: Served, way: SwitchWay, other: Path) -> None:
    assert switching.switch.changes.load_speeds == ()

    switching.switch.assign("other", 0)
    await credits_where(switching, served=True, model="other")
    await until_settled(switching)

    (speed,) = switching.switch.changes.load_speeds
    size_bytes = sum(path.stat().st_size for path in other.rglob("*.safetensors"))
    assert speed.tier is Tier.DISK
    assert speed.seconds_per_gb == pytest.approx(switching.switch.load_s["other"] * GB / size_bytes, rel=0.1)
