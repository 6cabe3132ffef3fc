"""Test images through the real service: from noise, from the cache, from an image, and with a failing cache."""

import asyncio
import errno
import io
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from prometheus_client import REGISTRY

from pentimento.domain.errors import DeadlineExceeded, InvalidArgument, NotFound, Unavailable
from pentimento.domain.execution import Started, StepProgress
from pentimento.domain.generation import FromImage, FromLatent, InitImage, NoiseForm, ObjectReference, Scheduler
from pentimento.stores.objects import filesystem
from services.unet_worker.attempts import order
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.requests import DONOR, GRANT, attempt, execute, from_latent, png, size_of, spec_with
from tests.support.calls import result_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def worker(shared_worker: Served) -> Served:
    return shared_worker


def skipped_donors() -> float:
    return REGISTRY.get_sample_value("pentimento_worker_skipped_donors_total") or 0.0


async def test_a_prompt_becomes_a_image_with_its_account(worker: Served) -> None:
    events = [event async for event in execute(worker)]

    assert isinstance(events[0], Started)
    assert any(isinstance(event, StepProgress) for event in events)
    result = await result_of(execute(worker, attempt=attempt(2)))
    assert size_of(result.image) == (32, 32)
    assert (result.steps_run, result.steps_saved, result.notes) == (8, 0, ())
    assert result.model_digest == worker.held.model_digest
    assert worker.held.step_s > 0.0
    assert [timing.stage for timing in result.timings][:2] == ["start", "queue"]
    assert result.device_seconds > 0


async def test_progress_without_listeners_is_rare(worker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "SELDOM_S", 600.0)

    events = [event async for event in execute(worker, omit_progress=True)]

    assert [event.step for event in events if isinstance(event, StepProgress)] == [1]


async def test_image_has_requested_format_and_quality(worker: Served) -> None:
    made = [
        (await result_of(execute(worker, attempt=attempt(number), image_format=kind, encoding_quality=quality))).image
        for number, (kind, quality) in enumerate(
            [("jpeg", 0), ("jpeg", None), ("jpeg", 100), ("png", None), ("webp", None)], start=1
        )
    ]

    assert [Image.open(io.BytesIO(image)).format for image in made] == ["JPEG"] * 3 + ["PNG", "WEBP"]
    assert {size_of(image) for image in made} == {(32, 32)}
    assert len(made[0]) < len(made[1]) < len(made[2])


async def test_same_request_gives_same_bytes_of_its_size(worker: Served) -> None:
    wide = spec_with(width_px=64, height_px=40)

    first, second = [await result_of(execute(worker, attempt=attempt(number), spec=wide)) for number in (1, 2)]

    assert size_of(first.image) == (64, 40)
    assert first.image == second.image


async def test_captured_objects_lie_in_store_under_grant(worker: Served) -> None:
    result = await result_of(execute(worker, cache_grant=GRANT))
    as_jpeg = await result_of(execute(worker, attempt=attempt(2), cache_grant=GRANT, image_format="jpeg"))

    assert result.captured.grant_id == "grant"
    assert [(latent.resume_step, latent.object.key) for latent in result.captured.latents] == [
        (2, "latents/k2"),
        (5, "latents/k5"),
    ]
    assert result.captured.latents[0].sigma > result.captured.latents[1].sigma > 0
    assert result.captured.image is not None and as_jpeg.captured.image is not None
    assert worker.objects.get(result.captured.image) == result.image
    # The cache always stores a PNG.
    assert worker.objects.get(as_jpeg.captured.image).startswith(b"\x89PNG")
    for latent in result.captured.latents:
        worker.objects.get(latent.object)


async def test_a_resumed_latent_gives_the_same_image_in_fewer_steps(worker: Served) -> None:
    whole = await result_of(execute(worker, cache_grant=GRANT))

    resumed = await result_of(execute(worker, attempt=attempt(2), start=from_latent(whole, 5)))

    assert resumed.image == whole.image
    assert (resumed.steps_run, resumed.steps_saved) == (3, 5)


@pytest.mark.parametrize(
    ("again", "back", "is_varied", "steps"), [(0, 0, False, (3, 5)), (2, 0, True, (5, 3)), (4, 1, True, (4, 4))]
)
async def test_seeds_from_one_latent_differ_where_it_is_noised_again(
    worker: Served, again: int, back: int, is_varied: bool, steps: tuple[int, int]
) -> None:
    start = from_latent(await result_of(execute(worker, cache_grant=GRANT)), 5)
    varied = replace(start, renoised_steps=again, retaken_steps=back)
    specs = [spec_with(seed=seed) for seed in (1, 2, 1)]

    made = [
        await result_of(execute(worker, attempt=attempt(2 + number), start=varied, spec=spec))
        for number, spec in enumerate(specs)
    ]

    assert (made[0].image != made[1].image) is is_varied
    assert made[0].image == made[2].image
    assert [(one.steps_run, one.steps_saved) for one in made] == [steps] * 3


@pytest.mark.parametrize("scheduler", [Scheduler.DDIM, Scheduler.EULER, Scheduler.DPM_SOLVER_PP_2M])
async def test_hit_that_is_noised_again_is_independent_of_its_batch(worker: Served, scheduler: Scheduler) -> None:
    spec = spec_with(scheduler=scheduler)
    start = from_latent(await result_of(execute(worker, spec=spec, cache_grant=GRANT)), 5)
    varied = replace(start, renoised_steps=4, retaken_steps=1)
    seeds = [replace(spec, seed=seed) for seed in (1, 2, 3)]

    together = await asyncio.gather(
        *(
            result_of(execute(worker, attempt=attempt(1, f"beside {number}"), start=varied, spec=one))
            for number, one in enumerate(seeds)
        )
    )
    alone = [
        await result_of(execute(worker, attempt=attempt(1, f"alone {number}"), start=varied, spec=one))
        for number, one in enumerate(seeds)
    ]

    assert [one.image for one in together] == [one.image for one in alone]


async def test_a_cached_image_is_refined_from_its_step(worker: Served) -> None:
    whole = await result_of(execute(worker, cache_grant=GRANT))
    assert whole.captured.image is not None
    start = FromImage(whole.captured.image, 5, NoiseForm.VARIANCE_PRESERVING, DONOR)

    refined = await result_of(execute(worker, attempt=attempt(2), start=start))

    assert (refined.steps_run, refined.steps_saved) == (3, 5)

    # A start noised further back depends on its seed for more of the image; one step is repeated.
    varied = replace(start, renoised_steps=4, retaken_steps=1)
    again = await result_of(execute(worker, attempt=attempt(3), start=varied))

    assert again.image != refined.image
    assert (again.steps_run, again.steps_saved) == (4, 4)


async def test_an_image_of_the_request_is_changed_by_its_strength(worker: Served) -> None:
    spec = spec_with(init_image=InitImage(png(48, 48), 0.5), scheduler=Scheduler.EULER)

    result = await result_of(execute(worker, spec=spec))

    assert (result.steps_run, result.steps_saved) == (4, 0)


@pytest.mark.parametrize("image", [b"not an image", png()[:-40]])
async def test_an_image_of_the_request_that_cannot_be_read_is_refused(worker: Served, image: bytes) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await result_of(execute(worker, spec=spec_with(init_image=InitImage(image, 0.5))))
    assert refused.value.violations[0].field == "spec.init_image.image"


def harmed(worker: Served, start: FromLatent, harm: str) -> FromLatent:
    """Damage a donor's object, and return the start from it."""
    if harm == "gone":
        worker.objects.delete(start.latent.key)
    elif harm == "corrupt":
        for path in worker.objects_directory.rglob("*k5*"):
            path.write_bytes(path.read_bytes()[:-1] + b"x")
    elif harm == "no latent":
        return replace(start, latent=worker.objects.put("latents/other", b"not safetensors"))
    return start


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ("gone", "OBJECT_MISSING"),
        ("corrupt", "OBJECT_CORRUPT"),
        ("no latent", "BAD_DONOR"),
        ("another size", "BAD_DONOR"),
    ],
)
async def test_bad_donor_costs_the_saving_alone(worker: Served, harm: str, reason: str) -> None:
    width_px = 64 if harm == "another size" else 32
    plain = await result_of(execute(worker, cache_grant=GRANT))
    start = harmed(worker, from_latent(plain, 5), harm)
    before = skipped_donors()

    result = await result_of(execute(worker, attempt=attempt(2), start=start, spec=spec_with(width_px=width_px)))

    assert (result.image == plain.image) is (width_px == 32)
    assert (result.steps_run, result.steps_saved) == (8, 0)
    assert skipped_donors() == before + 1
    assert result.notes[0].startswith(f"cache skipped: {reason}")
    assert result.bad_donor_reason == reason


@pytest.mark.parametrize(
    ("louder", "scheduler", "reason"), [(1.2, Scheduler.DDIM, "NO_SUCH_LEVEL"), (1.0, Scheduler.HEUN, "NOT_RESUMABLE")]
)
async def test_start_that_the_sampler_cannot_take_is_passed_over(
    worker: Served, louder: float, scheduler: Scheduler, reason: str
) -> None:
    start = from_latent(await result_of(execute(worker, cache_grant=GRANT)), 5)

    asked = {"start": replace(start, sigma=start.sigma * louder), "spec": spec_with(scheduler=scheduler)}
    result = await result_of(execute(worker, attempt=attempt(2), **asked))

    assert result.notes[0].startswith(f"cache skipped: {reason}")
    assert result.bad_donor_reason == ""


async def test_lost_store_costs_the_cache_and_delays_a_replay(checkpoint: Path, directory: Path) -> None:
    start = FromImage(ObjectReference("images/one", "sha256:" + "0" * 64, 10), 5, NoiseForm.VARIANCE_PRESERVING, DONOR)
    async with serve(checkpoint, directory) as worker:
        shutil.rmtree(worker.objects_directory)

        result = await result_of(execute(worker, start=start, cache_grant=GRANT))
        with pytest.raises(Unavailable) as refused:
            await result_of(execute(worker, attempt=attempt(2), start=start, replay_of="r-1"))

    assert size_of(result.image) == (32, 32)
    assert result.captured.latents == ()
    assert result.captured.image is None
    assert [note.partition(":")[0] for note in result.notes] == ["cache skipped", "cache"]
    assert refused.value.reason == "INPUT_UNAVAILABLE" and refused.value.retry_after_ms


async def test_a_full_store_costs_the_cache_and_not_the_image(worker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_some(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    plain = await result_of(execute(worker))
    # A limit of the process would also affect other writes here.
    monkeypatch.setattr(filesystem, "_write_all", write_some)
    result = await result_of(execute(worker, attempt=attempt(2), cache_grant=GRANT))

    assert result.image == plain.image
    assert (result.captured.latents, result.captured.image) == ((), None)
    assert result.notes == ("cache: 3 of 3 objects could not be stored",)
    assert list((worker.objects_directory / "staging").iterdir()) == []


async def test_previews_show_the_image_on_its_way(worker: Served) -> None:
    events = execute(worker, spec=spec_with(num_inference_steps=60), preview_interval_steps=2)

    previews = [event.preview async for event in events if isinstance(event, StepProgress) and event.preview]

    assert previews
    assert size_of(previews[0]) == (32, 32)


async def test_a_prompt_that_is_cut_off_is_noted(worker: Served) -> None:
    result = await result_of(execute(worker, spec=spec_with(prompt="a very long prompt " * 20)))

    assert "prompt longer" in result.notes[0]


async def test_a_deadline_stops_the_work(worker: Served) -> None:
    with pytest.raises(DeadlineExceeded):
        await result_of(execute(worker, spec=spec_with(num_inference_steps=900), deadline_remaining_ms=100))
    assert worker.model.engine.waiting_count == 0


async def test_a_replay_has_the_bytes_of_the_first_time(worker: Served) -> None:
    whole = await result_of(execute(worker, cache_grant=GRANT))
    start = from_latent(whole, 5)
    first = await result_of(execute(worker, attempt=attempt(2), start=start, spec=spec_with(seed=8)))

    again = await result_of(execute(worker, attempt=attempt(3), start=start, spec=spec_with(seed=8), replay_of="r-1"))

    assert (again.image, again.steps_saved) == (first.image, 5)


@pytest.mark.parametrize("harm", ["gone", "corrupt", "no latent"])
async def test_replay_without_its_donor_is_refused(worker: Served, harm: str) -> None:
    start = harmed(worker, from_latent(await result_of(execute(worker, cache_grant=GRANT)), 5), harm)

    with pytest.raises(NotFound) as refused:
        await result_of(execute(worker, attempt=attempt(2), start=start, replay_of="r-1"))

    assert refused.value.reason == "ANCESTOR_GONE"
    assert "the latent that r-1 started from" in refused.value.message
