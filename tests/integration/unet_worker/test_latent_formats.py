"""What latents are stored as, through the real service: the setting, and readers of what others stored."""

import io
import struct
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load, save

from pentimento.diffusion.latents import LatentFormat, latent_to_bytes
from pentimento.domain.execution import AttemptResult
from services.unet_worker.settings import LatentFormatChoice
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.requests import GRANT, attempt, execute, from_latent
from tests.support.calls import result_of

HEAD_BYTES = 12
_attempts = count(10)


@pytest.fixture
async def compact_worker(checkpoint: Path, directory: Path) -> AsyncIterator[Served]:
    async with serve(checkpoint, directory, latent_format=LatentFormatChoice.FLOAT16) as served:
        yield served


def stored(worker: Served, result: AttemptResult, step: int) -> bytes:
    return worker.objects.get(from_latent(result, step).latent)


def compressed(file: bytes) -> bytes:
    """As earlier versions stored it."""
    return struct.pack("<4sBBHI", b"PLAT", 1, 1, 0, len(file)) + zlib.compress(file, 1)


async def restored(worker: Served, result: AttemptResult, data: bytes) -> AttemptResult:
    """Resume the latent before step 5 with other bytes in its place."""
    start = replace(from_latent(result, 5), latent=worker.objects.put("latents/other", data))
    number = next(_attempts)
    return await result_of(execute(worker, attempt=attempt(number), start=start))


def test_every_format_can_be_set() -> None:
    assert [choice.value for choice in LatentFormatChoice] == [form.value for form in LatentFormat]


async def test_a_worker_stores_what_its_setting_says_and_reads_it(compact_worker: Served) -> None:
    whole = await result_of(execute(compact_worker, cache_grant=GRANT))

    assert load(stored(compact_worker, whole, 5))["latent"].dtype is torch.float16
    resumed = await result_of(execute(compact_worker, attempt=attempt(2), start=from_latent(whole, 5)))
    assert (resumed.steps_run, resumed.steps_saved, resumed.notes) == (3, 5, ())
    levels = [np.asarray(Image.open(io.BytesIO(image)), np.int16) for image in (whole.image, resumed.image)]
    assert np.abs(levels[0] - levels[1]).max() <= 4, "grey levels; half precision is off by a two-thousandth"


async def test_the_same_stored_object_gives_the_same_picture_every_time(compact_worker: Served) -> None:
    whole = await result_of(execute(compact_worker, cache_grant=GRANT))

    first, second = [
        await result_of(execute(compact_worker, attempt=attempt(number), start=from_latent(whole, 5)))
        for number in (2, 3)
    ]

    assert first.image == second.image


async def test_a_worker_reads_every_format_and_knows_newer_ones(worker: Served) -> None:
    whole = await result_of(execute(worker, cache_grant=GRANT))
    file = stored(worker, whole, 5)
    latent = load(file)["latent"]

    older = [compressed(save({"latent": latent.to(dtype)})) for dtype in (torch.float32, torch.bfloat16)]
    for data in (*(latent_to_bytes(latent, stored_as) for stored_as in LatentFormat), *older):
        resumed = await restored(worker, whole, data)
        assert (resumed.steps_saved, resumed.notes) == (5, ()), data[:80]
    newer = await restored(worker, whole, struct.pack("<4sBBHI", b"PLAT", 2, 1, 0, len(file)) + file)
    torn = await restored(worker, whole, compressed(file)[: HEAD_BYTES + 9])

    assert newer.image == whole.image
    assert newer.notes[0].startswith("cache skipped: UNKNOWN_LATENT_FORMAT")
    assert newer.bad_donor_reason == "", "its bytes are sound, and its entry serves others"
    assert torn.image == whole.image
    assert torn.bad_donor_reason == "BAD_DONOR"
