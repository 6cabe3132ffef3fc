import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lab.fixtures.held_models import HELD
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.generation import InitImage, Scheduler, SigmaSpacing
from pentimento.domain.image_request import CacheMode, ImageFormat, ImageRequest, ResolvedRequest
from services.frontdoor.journal.recovery import JOURNALLED_REQUEST, resolved_from_bytes, resolved_to_bytes
from services.frontdoor.requests.resolution import (
    check_cost,
    check_idempotency_key,
    resolve,
    resolve_limits,
)
from services.frontdoor.settings import RequestLimits
from services.frontdoor.workers.catalogue import AdapterCatalogue
from tests.support.images import a_png

LIMITS = RequestLimits(max_request_cost=64 * 64 * 100)


def resolved(**fields: Any) -> ResolvedRequest:
    return resolve(ImageRequest(**{"prompt": "a red circle", **fields}), HELD, AdapterCatalogue(), LIMITS, drawn_seed=7)


def jpeg(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "jpeg")
    return buffer.getvalue()


def png_bomb() -> bytes:
    """Return 70 bytes that promise 60,000 x 60,000 pixels."""
    bomb = bytearray(a_png(8, 8))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    return bytes(bomb)


def started(image: bytes, strength: float = 0.5, mask: bytes | None = None) -> dict[str, Any]:
    return {"init_image": InitImage(image, strength, *([] if mask is None else [mask]))}


def test_resolve_open_fields_come_from_model_and_deployment() -> None:
    request = resolved()

    spec = request.spec
    assert (spec.width_px, spec.height_px, spec.num_inference_steps, spec.guidance_scale) == (32, 32, 50, 3.0)
    assert (spec.scheduler, spec.eta, spec.seed, spec.model) == (Scheduler.DDIM, 0.0, 7, "tiny")
    assert (request.cache, request.format, request.quality) == (CacheMode.READ_WRITE, ImageFormat.PNG, None)
    # 0 is a value.
    named = resolved(seed=0, guidance_scale=0.0, eta=0.5).spec
    assert (named.seed, named.guidance_scale, named.eta) == (0, 0.0, 0.5)


LARGE = b"x" * ((8 << 20) + 1)
IMAGE, MASK, STRENGTH = "init_image.image", "init_image.mask", "init_image.strength"
SIDES = "must have sides of 8 to 64 pixels without a size, got"
WEIGHTED = {"prompt_syntax": "a1111"}
REFUSED: tuple[tuple[dict[str, Any], str, str], ...] = (
    *[({"prompt": text}, "prompt", "") for text in ("", " \n\t", "canary" * 2_000_000, "é" * 4097, "a\0b")],
    *[({"negative_prompt": text}, "negative_prompt", "") for text in ("x" * 8193, "\0")],
    *[
        ({side: size}, side, f"must be a multiple of 8 from 8 to 64, got {size}")
        for side in ("width_px", "height_px")
        for size in (0, -1, 2**31, 2**62, 33, 4, 72)
    ],
    *[({"num_inference_steps": steps}, "num_inference_steps", "") for steps in (0, -1, 1001, 10**9)],
    *[({"guidance_scale": scale}, "guidance_scale", "") for scale in (math.nan, math.inf, -math.inf, -0.1, 100.5)],
    *[({"eta": eta}, "eta", "") for eta in (math.nan, -0.5, 1.5)],
    ({"eta": 0.5, "scheduler": "euler"}, "eta", "must be 0 with scheduler euler"),
    *[({"clip_skip": count}, "clip_skip", "") for count in (-1, 12, 2**62)],
    ({"prompt_syntax": "A1111"}, "prompt_syntax", "must be a1111 or compel, or empty for plain text, got 'A1111'"),
    ({**WEIGHTED, "prompt": "a (red"}, "prompt", "'(' is not closed"),
    ({**WEIGHTED, "prompt": "()"}, "prompt", "must have text besides its syntax"),
    ({**WEIGHTED, "negative_prompt": "(x:nan)"}, "negative_prompt", "must have weights between -10 and 10, got nan"),
    *[({"seed": seed}, "seed", "") for seed in (-1, 2**64)],
    *[
        ({"scheduler": name}, "scheduler", "must be one of ddim, euler, or euler with _timesteps, _karras, ")
        for name in ("no such", "dpmpp_2m", "ddim_karras", "euler_", "euler_karras_beta")
    ],
    *[({"quality": quality}, "quality", "") for quality in (math.nan, -0.1, 1.1)],
    *[({"deadline_ms": deadline}, "deadline_ms", "") for deadline in (0, -1, 3_600_001, 2**62)],
    *[({"encoding_quality": quality}, "encoding_quality", "") for quality in (-1, 101, 2**62)],
    *[
        ({"format": kind, "encoding_quality": 99}, "encoding_quality", "must be 100 for a PNG")
        for kind in (None, ImageFormat.PNG)
    ],
    *[({"max_cost": cost}, "max_cost", "") for cost in (math.nan, -1.0, 0.0, 1.0, math.inf, 32 * 32 * 50 - 1)],
    ({"image_count": 2, "max_cost": 2 * 32 * 32 * 50 - 1}, "max_cost", ""),
    *[({"image_count": count}, "image_count", "must be between 1 and 10") for count in (0, -1, 11, 2**62)],
    *[(started(image), IMAGE, "") for image in (b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", LARGE)],
    (started(png_bomb()), IMAGE, "must have at most 8388608 pixels, got 60000 x 60000"),
    (started(a_png(72, 64)), IMAGE, f"{SIDES} 72 x 64"),
    (started(a_png(64, 100)), IMAGE, f"{SIDES} 64 x 100"),
    (started(a_png(7, 40)), IMAGE, f"{SIDES} 7 x 40"),
    *[(started(a_png(8, 8), strength), STRENGTH, "") for strength in (math.nan, -0.1, 1.1, 0.01)],
    (started(a_png(16, 8), mask=b"GIF89a"), MASK, "must be a PNG, JPEG or WebP image"),
    (started(a_png(16, 8), mask=jpeg(16, 8)), MASK, "must be a PNG image, got JPEG"),
    (started(a_png(16, 8), mask=a_png(8, 16)), MASK, "must be of the image's size, 16 x 8, got 8 x 16"),
    (started(a_png(16, 8), mask=LARGE), MASK, "must have at most 8388608 bytes, got 8388609"),
)


def test_resolve_out_of_bounds_is_refused_by_name() -> None:
    for fields, field, words in REFUSED:
        with pytest.raises(InvalidArgument) as caught:
            resolved(**fields)

        assert [violation.field for violation in caught.value.violations] == [field], str(fields)[:200]
        assert words in caught.value.message
        assert "canary" not in caught.value.message  # the prompt's own text
        assert len(caught.value.message) < 300
    for key in ("x" * 129, "a\0b", "line\nbreak"):
        with pytest.raises(InvalidArgument, match="idempotency_key"):
            check_idempotency_key(key)


def test_resolve_scheduler_ending_is_spacing() -> None:
    asked = ("euler_karras", "euler_beta", "euler", "ddim")
    found = [(spec.scheduler, spec.sigma_spacing) for spec in (resolved(scheduler=name).spec for name in asked)]

    assert found == [
        (Scheduler.EULER, SigmaSpacing.KARRAS),
        (Scheduler.EULER, SigmaSpacing.BETA),
        (Scheduler.EULER, None),
        (Scheduler.DDIM, None),
    ]


def test_resolve_encoding_quality_depends_on_format() -> None:
    for asked in (ImageFormat.JPEG, ImageFormat.WEBP):
        kept = [resolved(format=asked, encoding_quality=one).encoding_quality for one in (None, 0, 100)]
        assert kept == [None, 0, 100]
    for asked in (None, ImageFormat.PNG):
        assert resolved(format=asked, encoding_quality=100) == resolved(format=asked)


SIDES_OF_IMAGES: list[tuple[tuple[int, int], dict[str, int], tuple[int, int]]] = [
    ((64, 64), {}, (64, 64)),
    ((48, 40), {}, (48, 40)),
    ((63, 33), {}, (56, 32)),
    ((8, 15), {}, (8, 8)),
    ((71, 64), {}, (64, 64)),
    ((300, 48), {"width_px": 16, "height_px": 24}, (16, 24)),
    ((48, 40), {"width_px": 16}, (16, 40)),
]


def test_resolve_image_derives_missing_sides() -> None:
    """Width and height as diffusers' VaeImageProcessor rounds them (`get_default_height_width`, scale factor 8)."""
    for image_size, asked, size in SIDES_OF_IMAGES:
        spec = resolved(init_image=InitImage(a_png(*image_size), 0.5), **asked).spec

        assert (spec.width_px, spec.height_px) == size, image_size


def test_resolve_own_image_and_mask_stay_out_of_cache() -> None:
    asked = InitImage(a_png(16, 8), 0.5, a_png(16, 8))

    assert resolved(init_image=asked).spec.init_image == asked
    assert resolved().cacheable
    for fields in ({"init_image": asked}, started(a_png(8, 8)), {"cache": CacheMode.OFF}):
        assert not resolved(**fields).cacheable
    heun = replace(resolved().spec, scheduler=Scheduler.HEUN)
    assert not replace(resolved(), spec=heun).cacheable


def test_resolve_cost_of_all_images_is_limited() -> None:
    cost = resolved().cost
    large = {"width_px": 64, "height_px": 64}

    assert resolved(max_cost=cost).cost == cost
    assert resolved(**large, num_inference_steps=10, image_count=10).cost == 64 * 64 * 10
    with pytest.raises(InvalidArgument, match="must be at most 409600 pixel steps"):
        resolved(**large, num_inference_steps=101)
    with pytest.raises(InvalidArgument, match="x image_count: must be at most 409600 pixel steps, got 450560"):
        resolved(**large, num_inference_steps=11, image_count=10)


def test_resolve_default_deadline_scales_with_measured_step() -> None:
    for step_s, asked, expected_s in (
        (0.0, {}, 120),
        (0.5, {}, 120),
        (7.0, {}, 1050),
        (7.0, {"num_inference_steps": 10}, 210),
        (7.0, {"width_px": 64, "height_px": 64, "num_inference_steps": 10}, 840),
        (7.0, {"num_inference_steps": 10, "image_count": 2}, 420),
        (700.0, {}, 3600),
        (7.0, {"deadline_ms": 5000}, 5),
    ):
        request = ImageRequest(prompt="a red circle", **asked)  # type: ignore[arg-type]
        held = replace(HELD, step_s=step_s)
        found = resolve(request, held, AdapterCatalogue(), RequestLimits(), drawn_seed=7)
        assert found.deadline_ms == expected_s * 1000, (step_s, asked)


def test_stated_cost_limit_is_exact() -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_cost(14_548_942.0, 1.0, RequestLimits())

    told = re.search(r"cost, ([0-9.e+]+) pixel steps", refused.value.message)
    assert told is not None
    check_cost(14_548_942.0, float(told[1]), RequestLimits())
    with pytest.raises(InvalidArgument, match="deadline_ms: must be between 1 and 3600000, got 0"):
        resolve_limits(0, 0, RequestLimits())


numbers = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
floats = st.one_of(st.none(), st.floats())


@given(
    st.builds(
        ImageRequest,
        prompt=st.text(max_size=20),
        width_px=numbers,
        height_px=numbers,
        num_inference_steps=numbers,
        guidance_scale=floats,
        scheduler=st.sampled_from(["", "ddim", "euler", "?"]),
        eta=floats,
        seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
        quality=floats,
        deadline_ms=numbers,
        max_cost=floats,
        image_count=numbers,
    )
)
def test_any_request_is_resolved_within_its_limits_or_refused(request: ImageRequest) -> None:
    try:
        accepted = resolve(request, HELD, AdapterCatalogue(), LIMITS, drawn_seed=1)
    except PentimentoError as error:
        assert isinstance(error, InvalidArgument)
        return
    assert accepted.cost <= LIMITS.max_request_cost
    assert resolved_from_bytes(resolved_to_bytes(accepted), JOURNALLED_REQUEST) == accepted
