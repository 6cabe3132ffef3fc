"""A worker that the plan tells to hold another model, with real checkpoints."""

import asyncio
import hashlib
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.devices.choices import TextEncoderPlace
from pentimento.domain.errors import ResourceExhausted
from pentimento.domain.execution import AttemptResult, WorkerCredits
from pentimento.domain.fleet import Replica, ReplicaKind
from pentimento.domain.generation import FromNoise, Route
from pentimento.domain.weights import ShortModel
from pentimento.files.adapter_registry import LORA_BOUNDS_FILE
from services.unet_worker.models import checkpoint_loading, model_switch
from services.unet_worker.models.loaded import LoadedModel
from tests.integration.unet_worker.conftest import Served, at_step, serve
from tests.integration.unet_worker.requests import SPEC, attempt, execute
from tests.support.calls import result_of


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "other", prediction_type="epsilon")


@pytest.fixture
async def switching(checkpoint: Path, other: Path, directory: Path) -> AsyncIterator[Served]:
    async with serve(checkpoint, directory, other_models=(other,)) as served:
        yield served


async def credits_where(worker: Served, served: bool, model: str = "") -> WorkerCredits:
    """As soon as the worker takes attempts, or none."""
    async with asyncio.timeout(120):
        async for credits in worker.client.watch_credits("frontdoor", 1):
            if bool(credits.credit_count) == served and model in ("", credits.held.model):
                return credits
    raise AssertionError("the stream ended")


async def generate(worker: Served, request_id: str) -> AttemptResult:
    """By whatever it holds."""
    held = worker.held
    route = Route("route", FromNoise(), held.model, held.model_digest)
    one, spec = attempt(request_id=request_id), replace(SPEC, model=held.model)
    return await result_of(worker.client.execute(one, spec, route, held.worker_generation))


@contextmanager
def held_in_its_steps() -> Iterator[threading.Event]:
    """Inside, the next picture stays at its first step until the event is set, as it is in the end."""
    goes_on = threading.Event()
    with at_step(1, goes_on.wait):
        try:
            yield goes_on
        finally:
            goes_on.set()


async def test_what_runs_is_generated_first_and_then_the_other_model_is_served(switching: Served, other: Path) -> None:
    before = switching.held
    with held_in_its_steps() as goes_on:
        running = asyncio.ensure_future(result_of(execute(switching)))
        while not switching.switch.running_count:  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.01)

        switching.switch.assign("other", 8)

        assert (await credits_where(switching, served=False)).held == before
        goes_on.set()
        assert (await running).model_digest == before.model_digest
    held = (await credits_where(switching, served=True)).held
    assert (held.model, held.worker_generation) == ("other", before.worker_generation)
    generated = await generate(switching, "after")
    assert generated.model_digest == held.model_digest != before.model_digest


async def test_it_generates_as_a_worker_that_held_the_model_all_along(switching: Served, other: Path) -> None:
    switching.switch.assign("other", 8)
    await credits_where(switching, served=True, model="other")
    switched = await generate(switching, "switched")

    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with serve(other, Path(folder)) as fresh:
            always = await generate(fresh, "always")

    assert hashlib.sha256(switched.image).digest() == hashlib.sha256(always.image).digest()


async def test_the_memory_of_a_model_goes_back_before_the_next_one_is_loaded(
    switching: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, load = [], switching.switch._load

    async def loading(model: str) -> LoadedModel:
        done.append("loads")
        return await load(model)

    monkeypatch.setattr(model_switch, "trim_heap", lambda: done.append("gives back"))
    monkeypatch.setattr(switching.switch, "_load", loading)
    switching.switch.assign("other", 8)
    await credits_where(switching, served=True, model="other")

    assert done == ["gives back", "loads"]


async def test_nothing_is_taken_while_it_switches(switching: Served) -> None:
    with held_in_its_steps() as goes_on:
        running = asyncio.ensure_future(result_of(execute(switching)))
        while not switching.switch.running_count:  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.01)
        switching.switch.assign("other", 8)

        with pytest.raises(ResourceExhausted) as refused:
            await result_of(execute(switching, attempt=attempt(request_id="late")))

        assert refused.value.reason == "NO_CREDIT"
        goes_on.set()
        await running


@pytest.mark.parametrize("name", ["broken", "other"], ids=["no model", "another digest"])
async def test_model_that_cannot_be_held_is_not_tried_again(
    checkpoint: Path, other: Path, directory: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model_index.json").write_text("{}")
    wrong = tmp_path / "broken" if name == "broken" else Path(f"{other}@sha256:{'0' * 64}")
    async with serve(checkpoint, directory, other_models=(wrong,)) as worker:
        worker.switch.assign(name, 8)
        while worker.switch.target_model == name:  # noqa: ASYNC110 - another thread loads it
            await asyncio.sleep(0.01)
        held = (await credits_where(worker, served=True)).held

        worker.switch.assign(name, 8)
        registered = worker.process._describe(Replica("w", ReplicaKind.UNET_WORKER, "unix:/w", 1), worker.switch, ())
        assert (held.model, worker.switch.target_model) == ("tiny", "tiny")
        assert registered.available_models == ("tiny",)
        assert (await generate(worker, "after")).model_digest == held.model_digest


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

        registered = worker.process._describe(Replica("w", ReplicaKind.UNET_WORKER, "unix:/w", 1), worker.switch, ())
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
    """The checkpoint with a denoiser that makes NaN of everything: it loads, and fails at its first picture."""
    file = checkpoint / "unet" / "diffusion_pytorch_model.safetensors"
    weights = {name: torch.full_like(weight, torch.nan) for name, weight in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    return checkpoint


def engines() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "step-engine"}


@pytest.mark.parametrize("fails_at", ["its LoRAs", "its first picture"])
async def test_nothing_goes_on_running_of_a_model_that_fails_once_its_engine_runs(
    checkpoint: Path, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    other, bounds = write_checkpoint(tmp_path / "other", prediction_type="epsilon"), tmp_path / LORA_BOUNDS_FILE
    engines_beside = engines()
    async with serve(checkpoint, directory, other_models=(other,), adapters_dir=tmp_path) as worker:
        running, load = [], worker.switch._load
        assert len(engines() - engines_beside) == 1
        if fails_at == "its LoRAs":
            bounds.write_text("no bounds")
        else:
            without_numbers(other)

        async def loading(model: str) -> LoadedModel:
            running.append(len(engines() - engines_beside))
            if model == "tiny":
                bounds.unlink(missing_ok=True)
            return await load(model)

        monkeypatch.setattr(worker.switch, "_load", loading)
        worker.switch.assign("other", 8)
        while worker.switch.target_model == "other":  # noqa: ASYNC110 - another thread loads it
            await asyncio.sleep(0.01)
        await credits_where(worker, served=True, model="tiny")

        assert running == [0, 0]


async def test_a_plan_bounds_its_batches_and_never_widens_them(worker: Served) -> None:
    limits = []
    for most in (2, 1000, 2, 0):
        worker.switch.assign("tiny", most)
        limits.append(worker.switch.batch_limit)

    assert limits == [2, 8, 2, 8]
