"""Test stored latents in each format, and images thinned while they run, through the real service."""

import asyncio
import io
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load, save

from pentimento.devices.choices import LatentFormat
from pentimento.diffusion.images import latent_to_bytes
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.execution import AttemptResult
from pentimento.domain.generation import FromLatent, ObjectReference, Scheduler
from tests.integration.unet_worker.conftest import Served, at_step, serve
from tests.integration.unet_worker.requests import DONOR, GRANT, SPEC, attempt, execute, from_latent, route
from tests.support.calls import result_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT_S = 60.0


@pytest.fixture
def worker(shared_worker: Served) -> Served:
    return shared_worker


def asking(worker: Served, steps: tuple[int, ...], request_id: str, found: list[bool]) -> Callable[[], None]:
    """Ask over the wire from the engine's thread, which runs no step during the call."""
    loop = asyncio.get_running_loop()

    def ask() -> None:
        call = worker.client.thin(worker.prefix + request_id, 1, steps, LIMIT_S)
        found.append(asyncio.run_coroutine_threadsafe(call, loop).result(LIMIT_S))

    return ask


@pytest.mark.parametrize("scheduler", [Scheduler.DDIM, Scheduler.EULER])
async def test_a_image_thinned_on_its_way_is_the_one_thinned_from_its_start_and_its_replay(
    worker: Served, scheduler: Scheduler
) -> None:
    spec, found = replace(SPEC, scheduler=scheduler), list[bool]()
    with at_step(2, asking(worker, (4, 6), "midway", found)):
        midway = await result_of(execute(worker, attempt=attempt(request_id="midway"), spec=spec))
    from_start = replace(route(worker), thinned_steps=(4, 6))
    started, replayed = [
        await result_of(
            worker.client.execute(attempt(request_id=worker.prefix + name), spec, one, worker.held.worker_generation)
        )
        for name, one in (("start", from_start), ("again", replace(from_start, replay_of="midway")))
    ]
    whole = await result_of(execute(worker, attempt=attempt(request_id="whole"), spec=spec))

    assert found == [True]
    assert (midway.thinned_steps, midway.steps_run) == ((4, 6), 6)
    assert midway.image == started.image == replayed.image != whole.image
    assert replayed.thinned_steps == (4, 6)
    assert "steps left out: from step 4 on 2 of 4 were taken" in midway.notes


async def test_thinning_after_its_step_runs_all_steps(worker: Served) -> None:
    found: list[bool] = []
    with at_step(5, asking(worker, (4, 6), "late", found)):
        late = await result_of(execute(worker, attempt=attempt(request_id="late")))

    assert (found, late.thinned_steps, late.steps_run) == ([True], (), 8)
    assert not any("left out" in note for note in late.notes)


async def test_thinning_of_unknown_attempt_returns_false(worker: Served) -> None:
    assert await worker.client.thin("nobody", 1, (4, 6), LIMIT_S) is False


async def test_steps_outside_schedule_are_refused_and_image_completes(worker: Served) -> None:
    refused: list[InvalidArgument] = []

    def ask() -> None:
        try:
            asking_now()
        except InvalidArgument as error:
            refused.append(error)

    asking_now = asking(worker, (4, 8), "wrong", [])
    with at_step(2, ask):
        result = await result_of(execute(worker, attempt=attempt(request_id="wrong")))

    assert [error.violations[0].field for error in refused] == ["thinned_steps"]
    assert result.steps_run == 8


async def test_hit_with_lost_donor_runs_all_steps_from_noise(worker: Served) -> None:
    """The measured rows of hits permitted the thinning, at the start and during the run."""
    gone = FromLatent(ObjectReference("gone", "sha256:" + "0" * 64, 100), 3, 8, 1.0, DONOR)
    hit, found = replace(route(worker, gone), thinned_steps=(4, 6)), list[bool]()
    generation = worker.held.worker_generation
    mine = attempt(request_id=worker.prefix + "routed")
    routed = await result_of(worker.client.execute(mine, SPEC, hit, generation))
    with at_step(2, asking(worker, (4, 6), "asked", found)):
        asked = await result_of(execute(worker, attempt=attempt(request_id="asked"), start=gone))

    assert found == [True]
    assert [(one.thinned_steps, one.steps_run) for one in (routed, asked)] == [((), 8), ((), 8)]


_attempts = count(10)


def stored(worker: Served, result: AttemptResult, step: int) -> bytes:
    return worker.objects.get(from_latent(result, step).latent)


async def restored(worker: Served, result: AttemptResult, data: bytes) -> AttemptResult:
    """Resume the latent before step 5 with other bytes in its place."""
    start = replace(from_latent(result, 5), latent=worker.objects.put("latents/other", data))
    number = next(_attempts)
    return await result_of(execute(worker, attempt=attempt(number), start=start))


async def test_worker_stores_latents_in_its_format_and_reads_them(checkpoint: Path, directory: Path) -> None:
    async with serve(checkpoint, directory, latent_format=LatentFormat.FLOAT16) as worker:
        whole = await result_of(execute(worker, cache_grant=GRANT))
        data = stored(worker, whole, 5)
        resumed, again = [
            await result_of(execute(worker, attempt=attempt(number), start=from_latent(whole, 5))) for number in (2, 3)
        ]

    assert load(data)["latent"].dtype is torch.float16
    assert again.image == resumed.image
    assert (resumed.steps_run, resumed.steps_saved, resumed.notes) == (3, 5, ())
    levels = [np.asarray(Image.open(io.BytesIO(image)), np.int16) for image in (whole.image, resumed.image)]
    assert np.abs(levels[0] - levels[1]).max() <= 4, "grey levels; half precision is off by a two-thousandth"


async def test_a_worker_reads_every_format_and_knows_newer_ones(worker: Served) -> None:
    whole = await result_of(execute(worker, cache_grant=GRANT))
    file = stored(worker, whole, 5)
    latent = load(file)["latent"]

    other = save({"latent": latent.to(torch.bfloat16)})
    for data in (*(latent_to_bytes(latent, stored_as) for stored_as in LatentFormat), other):
        resumed = await restored(worker, whole, data)
        assert (resumed.steps_saved, resumed.notes) == (5, ()), data[:80]
    newer = await restored(worker, whole, save({"latent": latent.double()}))
    torn = await restored(worker, whole, file[:-9])

    assert newer.image == whole.image
    assert newer.notes[0].startswith("cache skipped: UNKNOWN_LATENT_FORMAT")
    assert newer.bad_donor_reason == "", "its bytes are sound, and its entry serves others"
    assert torn.image == whole.image
    assert torn.bad_donor_reason == "BAD_DONOR"
