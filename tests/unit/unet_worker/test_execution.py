"""Run attempts on the real engine and decode them: each failure stays alone."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from lab.emulation.png_text import flat_png
from pentimento.diffusion.denoising import ImageStart, schedule_for
from pentimento.diffusion.engine import EngineSettings, StepEngine
from pentimento.diffusion.families import DenoiserInput, DiffusionModel
from pentimento.domain.errors import DeadlineExceeded, Internal, ResourceExhausted, Unavailable
from pentimento.domain.execution import ExecuteEvent, Started
from pentimento.domain.generation import CacheGrant, InitImage, LatentSlot, ObjectReference
from pentimento.stores.objects import ObjectStore, open_objects
from services.unet_worker.attempts import finishing
from services.unet_worker.attempts.cache_objects import Uploads
from services.unet_worker.attempts.execution import EngineModelRunner
from services.unet_worker.attempts.finishing import Finisher
from services.unet_worker.attempts.runner import AttemptRunner
from services.unet_worker.attempts.starts import StartResolver
from tests.support.images import png_of
from tests.unit.unet_worker.orders import FROM_LATENT, HELD, ORDER, order_with

GRANT = CacheGrant("grant", (LatentSlot(2, "latents/k2"), LatentSlot(6, "latents/k6")), "images/one", 60_000)
PICTURE = flat_png(ORDER.spec.width_px, ORDER.spec.height_px, (200, 30, 30))


class NotANumberAt:
    """The real model, with NaN as the prediction of one call."""

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
        self, model: DiffusionModel, objects: ObjectStore, donor_timeout_s: float = 60.0, upload_timeout_s: float = 60.0
    ) -> None:
        self.model = NotANumberAt(model)
        served: Any = self.model
        self.threads = ThreadPoolExecutor(4)
        self.engine = StepEngine(served, EngineSettings(max_batch=1))
        self.finisher = Finisher(served)
        self.engine.start()
        starts = StartResolver(served, objects, self.threads, timeout_s=donor_timeout_s)
        generator = EngineModelRunner("worker", HELD, self.engine, self.finisher, starts, progress_interval_s=0.0)
        self.runner = AttemptRunner(generator, objects, self.threads, upload_timeout_s, self.engine.wake)

    def close(self) -> None:
        self.engine.close()
        self.finisher.close()
        self.threads.shutdown()


@pytest.fixture
def parts(model: DiffusionModel, tmp_path: Path) -> Iterator[Parts]:
    made = Parts(model, open_objects(f"file://{tmp_path}/objects"))
    yield made
    made.close()


def ignore(event: ExecuteEvent) -> None:
    pass


async def test_latent_that_is_not_finite_fails_alone_and_is_not_stored(parts: Parts, tmp_path: Path) -> None:
    parts.model.calls_until_nan = 3

    with pytest.raises(Internal) as failed:
        await parts.runner.run(replace(ORDER, cache_grant=GRANT), ignore)

    assert failed.value.reason == "NON_FINITE_LATENT"
    assert (await parts.runner.run(ORDER, ignore)).result.image
    parts.threads.shutdown()
    # The latent before the third step was valid, and may be stored by then; the one before the seventh was not.
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


async def test_idle_work_continues_after_attempt(parts: Parts) -> None:
    over = threading.Event()

    def work(wanted: Callable[[], bool]) -> bool:
        if parts.runner.running_count == 0:
            over.set()
        return True

    begun = asyncio.create_task(parts.runner.run(ORDER, ignore))
    await asyncio.sleep(0)
    # From here on the count is zero only once the attempt is over.
    assert parts.runner.running_count == 1
    parts.engine.work_when_idle(work)
    await begun

    assert await asyncio.to_thread(over.wait, 120)


async def test_a_closed_engine_is_unavailable(parts: Parts) -> None:
    parts.engine.close()

    with pytest.raises(Unavailable):
        await parts.runner.run(ORDER, ignore)


class HungStore:
    """A store that does not answer until `released`."""

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


async def test_silent_store_costs_saving_and_not_image(model: DiffusionModel) -> None:
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
    """Generate two images with uploads that still wait for the store: three of the first and, on the fourth thread, one
    of the second."""
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


async def test_uploads_to_silent_store_delay_no_attempt_and_are_abandoned(
    model: DiffusionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, hung = await after_two_that_store_nothing(model, monkeypatch)

    async with asyncio.timeout(60):
        result = (await parts.runner.run(order_with(init_image=InitImage(PICTURE, 0.5)), ignore)).result
    hung.released.set()
    parts.close()

    assert result.image
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


LATENT = torch.zeros(1, 4, 8, 8)


class Decoder:
    """Raises the first of `errors` at each call, as long as there is one."""

    def __init__(self, *errors: Exception, pixels: torch.Tensor | None = None) -> None:
        self._errors = list(errors)
        self._pixels = torch.zeros(1, 3, 16, 16, dtype=torch.float16) if pixels is None else pixels

    def decode_latent(self, latent: torch.Tensor) -> torch.Tensor:
        if self._errors:
            raise self._errors.pop(0)
        return self._pixels


def finisher(*errors: Exception, pixels: torch.Tensor | None = None) -> Finisher:
    model: Any = Decoder(*errors, pixels=pixels)
    return Finisher(model)


async def test_a_image_in_half_precision_becomes_a_png() -> None:
    picture = await finisher().finish(LATENT, "png", keep_png=True)

    assert picture.image.startswith(b"\x89PNG")
    assert picture.started_at <= picture.decoded_at <= picture.encoded_at


async def test_file_has_requested_quality() -> None:
    jpegs = [await finisher().finish(LATENT, "jpeg", True, quality) for quality in (None, 75, 100, 0)]

    tables = [Image.open(io.BytesIO(one.image)).quantization for one in jpegs]  # type: ignore[attr-defined]
    assert tables[0] == tables[1]
    assert {factor for table in tables[2].values() for factor in table} == {1}
    assert {factor for table in tables[3].values() for factor in table} == {255}
    assert all(one.png.startswith(b"\x89PNG") for one in jpegs)


@pytest.mark.parametrize(
    ("made", "latent", "error", "said"),
    [
        (finisher(torch.OutOfMemoryError("no memory")), LATENT, ResourceExhausted, "memory"),
        (finisher(RuntimeError("shapes differ")), LATENT, RuntimeError, "shapes"),
        (finisher(), LATENT / 0.0, Internal, "finite"),
    ],
    ids=["no memory", "another error", "a latent that is not finite"],
)
async def test_finish_fails_one_image_alone(
    made: Finisher, latent: torch.Tensor, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await made.finish(latent, "png", keep_png=False)
    assert (await made.finish(LATENT, "png", keep_png=False)).image


async def test_finish_refuses_pixels_that_are_not_finite() -> None:
    with pytest.raises(Internal, match="autoencoder"):
        await finisher(pixels=torch.full((1, 3, 16, 16), torch.nan)).finish(LATENT, "png", keep_png=False)


async def test_the_next_image_is_decoded_while_one_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's file is made once the second one's latent is in the decoder."""
    second_is_decoded = threading.Event()
    decoder = Decoder()
    model: Any = SimpleNamespace(decode_latent=lambda latent: _noted(decoder, latent, second_is_decoded))
    monkeypatch.setattr(finishing, "png_of_rows", lambda rows: str(second_is_decoded.wait(60)).encode())
    both = Finisher(model)

    pictures = await asyncio.gather(both.finish(LATENT, "png", False), both.finish(LATENT + 1, "png", False))

    assert [picture.image for picture in pictures] == [b"True", b"True"]


def _noted(decoder: Decoder, latent: torch.Tensor, second: threading.Event) -> torch.Tensor:
    if latent.any():
        second.set()
    return decoder.decode_latent(latent)
