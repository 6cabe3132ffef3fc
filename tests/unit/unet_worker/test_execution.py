"""One attempt on the real engine: what is not finite fails alone, and is neither stored nor answered."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.diffusion.engine import EngineSettings, StepEngine
from pentimento.diffusion.families import DenoiserInput, DiffusionModel, load_model
from pentimento.diffusion.painting import ImageStart, schedule_for
from pentimento.domain.errors import DeadlineExceeded, Internal, Unavailable
from pentimento.domain.execution import ExecuteEvent, Started
from pentimento.domain.generation import CacheGrant, InitImage, LatentSlot, ObjectReference
from pentimento.pictures.png_text import flat_png
from pentimento.stores.objects import ObjectStore, open_objects
from services.unet_worker.attempts.execution import EngineModelRunner
from services.unet_worker.attempts.finishing import Finisher
from services.unet_worker.attempts.runner import AttemptRunner
from services.unet_worker.attempts.starts import StartResolver
from services.unet_worker.cache.uploads import Uploads
from tests.support.images import png_of
from tests.unit.unet_worker.orders import FROM_LATENT, HELD, ORDER, order_with

GRANT = CacheGrant("grant", (LatentSlot(2, "latents/k2"), LatentSlot(6, "latents/k6")), "images/one", 60_000)
PICTURE = flat_png(ORDER.spec.width_px, ORDER.spec.height_px, (200, 30, 30))


class NotANumberAt:
    """The real model, whose prediction is NaN in one call."""

    def __init__(self, model: DiffusionModel) -> None:
        self._model = model
        self.calls_until_nan = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict(self, inputs: DenoiserInput) -> Tensor:
        self.calls_until_nan -= 1
        prediction = self._model.predict(inputs)
        return prediction * float("nan") if self.calls_until_nan == 0 else prediction


class Parts:
    """A runner on a real engine and a real store."""

    def __init__(
        self,
        model: DiffusionModel,
        objects: ObjectStore,
        donor_timeout_s: float = 60.0,
        upload_timeout_s: float = 60.0,
    ) -> None:
        self.model = NotANumberAt(model)
        served: Any = self.model
        self.threads = ThreadPoolExecutor(4)
        self.engine = StepEngine(served, EngineSettings(max_batch=1))
        self.finisher = Finisher(served, 16)
        self.engine.start()
        starts = StartResolver(served, objects, self.threads, timeout_s=donor_timeout_s)
        painter = EngineModelRunner("worker", HELD, self.engine, self.finisher, starts, progress_interval_s=0.0)
        self.runner = AttemptRunner(painter, objects, self.threads, upload_timeout_s, self.engine.wake)

    def close(self) -> None:
        self.engine.close()
        self.finisher.close()
        self.threads.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", prediction_type="v_prediction")
    return load_model(checkpoint, torch.device("cpu"), torch.float32)


@pytest.fixture
def parts(model: DiffusionModel, tmp_path: Path) -> Iterator[Parts]:
    made = Parts(model, open_objects(f"file://{tmp_path}/objects"))
    yield made
    made.close()


def ignore(event: ExecuteEvent) -> None:
    pass


async def test_a_latent_that_is_not_finite_fails_its_request_alone(parts: Parts) -> None:
    parts.model.calls_until_nan = 3

    with pytest.raises(Internal) as failed:
        await parts.runner.run(ORDER, ignore)

    assert failed.value.reason == "NON_FINITE_LATENT"
    assert (await parts.runner.run(ORDER, ignore)).result.image


async def test_a_latent_that_is_not_finite_is_never_stored(parts: Parts, tmp_path: Path) -> None:
    parts.model.calls_until_nan = 3

    with pytest.raises(Internal):
        await parts.runner.run(replace(ORDER, cache_grant=GRANT), ignore)
    parts.threads.shutdown()

    # The latent before the third step was sound, and may have been stored by then; the one before the seventh was not.
    assert set(open_objects(f"file://{tmp_path}/objects").keys("")) <= {"latents/k2"}


async def test_cancelling_the_run_stops_the_engine(parts: Parts) -> None:
    begun = asyncio.Event()

    def hear(event: ExecuteEvent) -> None:
        if isinstance(event, Started):
            begun.set()

    running = asyncio.create_task(parts.runner.run(order_with(num_inference_steps=900), hear))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (await parts.runner.run(ORDER, ignore)).result.image
    assert (parts.engine.running_count, parts.engine.waiting_count) == (0, 0)


async def test_a_deadline_in_the_past_is_exceeded_before_a_step(parts: Parts) -> None:
    with pytest.raises(DeadlineExceeded):
        await parts.runner.run(replace(order_with(num_inference_steps=90), deadline_remaining_ms=1), ignore)


async def test_work_for_idle_times_goes_on_once_an_attempt_is_over(parts: Parts) -> None:
    over = threading.Event()

    def work(wanted: Callable[[], bool]) -> bool:
        if parts.runner.running_count == 0:
            over.set()
        return True

    begun = asyncio.create_task(parts.runner.run(ORDER, ignore))
    await asyncio.sleep(0)
    # From here on nobody is running only once the attempt is over.
    assert parts.runner.running_count == 1
    parts.engine.work_when_idle(work)
    await begun

    assert await asyncio.to_thread(over.wait, 120)


async def test_a_closed_engine_is_unavailable(parts: Parts) -> None:
    parts.engine.close()

    with pytest.raises(Unavailable):
        await parts.runner.run(ORDER, ignore)


class HungStore:
    """Answers nobody until `released`."""

    backend = "hung"

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked: list[str] = []
        self.was_asked = threading.Semaphore(0)

    def get(self, reference: ObjectReference) -> bytes:
        self.released.wait()
        return b""

    def put(self, key: str, data: bytes, *, durable: bool = True) -> ObjectReference:
        self.asked.append(key)
        self.was_asked.release()
        self.released.wait()
        return ObjectReference(key, "sha256:hung", len(data))


async def test_a_store_that_does_not_answer_costs_the_saving_and_not_the_picture(model: DiffusionModel) -> None:
    hung: Any = HungStore()
    parts = Parts(model, hung, donor_timeout_s=0.05)
    start = replace(FROM_LATENT, sigma=schedule_for(model, ORDER.spec).sigmas[3])

    result = (await parts.runner.run(order_with(start=start), ignore)).result

    assert result.steps_saved == 0
    assert result.notes[0].startswith("cache skipped: STORE_SLOW")
    hung.released.set()
    parts.close()


async def after_two_that_store_nothing(
    model: DiffusionModel, monkeypatch: pytest.MonkeyPatch
) -> tuple[Parts, HungStore]:
    """Two pictures are painted, whose uploads still wait for the store: three of the first and, on the fourth thread,
    one of the second."""
    hung: Any = HungStore()
    parts, collect, awaited_counts = Parts(model, hung, upload_timeout_s=0.05), Uploads.collect, [1, 3]

    async def collect_later(uploads: Uploads, timeout_s: float) -> Any:
        for _ in range(awaited_counts.pop()):
            assert await asyncio.to_thread(hung.was_asked.acquire, timeout=60)
        return await collect(uploads, timeout_s)

    with monkeypatch.context() as patched:
        patched.setattr(Uploads, "collect", collect_later)
        for _ in range(2):
            await parts.runner.run(replace(ORDER, cache_grant=GRANT), ignore)
    return parts, hung


async def test_an_image_of_the_request_does_not_wait_for_a_store_that_does_not_answer(
    model: DiffusionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, hung = await after_two_that_store_nothing(model, monkeypatch)

    async with asyncio.timeout(60):
        result = (await parts.runner.run(order_with(init_image=InitImage(PICTURE, 0.5)), ignore)).result

    assert result.image
    hung.released.set()
    parts.close()


async def test_what_still_waits_for_the_store_is_given_up_with_its_attempt(
    model: DiffusionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, hung = await after_two_that_store_nothing(model, monkeypatch)

    hung.released.set()
    parts.close()

    assert sorted(hung.asked) == ["images/one", "latents/k2", "latents/k2", "latents/k6"]


SIZE_PX = (ORDER.spec.width_px, ORDER.spec.height_px)
HOLE = Image.new("L", SIZE_PX, 255)
HOLE.paste(0, (0, 0, SIZE_PX[0] // 2, SIZE_PX[1]))
WITH_HOLE = Image.new("RGB", SIZE_PX, (200, 30, 30))
WITH_HOLE.putalpha(HOLE)


@pytest.mark.parametrize(
    ("image", "mask", "changing", "from_noise"),
    [
        (png_of(WITH_HOLE), b"", 0.5, True),
        (PICTURE, png_of(WITH_HOLE), 0.5, True),
        (PICTURE, png_of(Image.new("L", SIZE_PX, 255)), None, False),
        (PICTURE, b"", None, False),
    ],
    ids=["transparent image", "transparent mask", "white mask", "no mask"],
)
async def test_start_has_the_mask_of_its_image(
    model: DiffusionModel, tmp_path: Path, image: bytes, mask: bytes, changing: float | None, from_noise: bool
) -> None:
    spec = replace(ORDER.spec, init_image=InitImage(image, 1.0, mask))
    with ThreadPoolExecutor(1) as threads:
        starts = StartResolver(model, open_objects(f"file://{tmp_path}"), threads, timeout_s=60.0)

        start = (await starts.resolve(spec, ORDER.route)).start

    assert isinstance(start, ImageStart)
    assert (None if start.mask is None else float(start.mask.mean()), start.from_noise) == (changing, from_noise)
