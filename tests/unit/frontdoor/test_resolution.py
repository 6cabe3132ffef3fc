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
from pentimento.domain.generation import InitImage, Scheduler
from pentimento.domain.image_request import (
    CacheMode,
    ImageFormat,
    ImageRequest,
    ResolvedRequest,
)
from services.frontdoor.journal.bodies import JOURNALLED_REQUEST, resolved_from_bytes, resolved_to_bytes
from services.frontdoor.requests.resolution import (
    RequestLimits,
    check_cost,
    check_idempotency_key,
    resolve,
    resolve_limits,
)
from services.frontdoor.workers.adapter_catalogue import AdapterCatalogue
from tests.support.images import a_png

LIMITS = RequestLimits(max_request_cost=64 * 64 * 100)


def resolved(**fields: Any) -> ResolvedRequest:
    return resolve(ImageRequest(**{"prompt": "a red circle", **fields}), HELD, AdapterCatalogue(), LIMITS, drawn_seed=7)


def test_what_is_left_open_comes_from_the_model_and_the_deployment() -> None:
    request = resolved()

    spec = request.spec
    assert (spec.width_px, spec.height_px, spec.num_inference_steps, spec.guidance_scale) == (32, 32, 50, 3.0)
    assert (spec.scheduler, spec.eta, spec.seed, spec.model) == (Scheduler.DDIM, 0.0, 7, "tiny")
    assert (request.cache, request.format, request.quality) == (CacheMode.READ_WRITE, ImageFormat.PNG, None)


def test_zero_is_not_the_same_as_not_said() -> None:
    assert resolved(seed=0).spec.seed == 0
    assert resolved(guidance_scale=0.0).spec.guidance_scale == 0.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ""),
        ("prompt", " \n\t"),
        ("prompt", "x" * 10_000_000),
        ("prompt", "é" * 4097),
        ("prompt", "a\0b"),
        ("negative_prompt", "x" * 8193),
        ("negative_prompt", "\0"),
        *[(side, size) for side in ("width_px", "height_px") for size in (0, -1, 2**31, 2**62, 33, 4, 72)],
        *[("num_inference_steps", steps) for steps in (0, -1, 1001, 10**9)],
        *[("guidance_scale", scale) for scale in (math.nan, math.inf, -math.inf, -0.1, 100.5)],
        *[("eta", eta) for eta in (math.nan, -0.5, 1.5)],
        ("seed", -1),
        ("seed", 2**64),
        ("scheduler", "no such"),
        ("scheduler", "dpmpp_2m"),
        *[("quality", quality) for quality in (math.nan, -0.1, 1.1)],
        *[("deadline_ms", deadline) for deadline in (0, -1, 3_600_001, 2**62)],
        *[("encoding_quality", quality) for quality in (-1, 101, 2**62)],
        *[("max_cost", cost) for cost in (math.nan, -1.0, 0.0, 1.0, math.inf)],
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolved(**{field: value})

    assert [violation.field for violation in caught.value.violations] == [field]
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("asked", [ImageFormat.JPEG, ImageFormat.WEBP])
def test_jpeg_and_webp_keep_as_much_as_they_are_asked_to(asked: ImageFormat) -> None:
    assert [resolved(format=asked, encoding_quality=kept).encoding_quality for kept in (None, 0, 100)] == [None, 0, 100]


@pytest.mark.parametrize("asked", [None, ImageFormat.PNG])
def test_a_png_keeps_all_of_its_picture(asked: ImageFormat | None) -> None:
    with pytest.raises(InvalidArgument, match="encoding_quality: must be 100 for a PNG"):
        resolved(format=asked, encoding_quality=99)

    assert resolved(format=asked, encoding_quality=100) == resolved(format=asked)


def test_the_error_states_the_limit() -> None:
    with pytest.raises(InvalidArgument, match="width_px: must be a multiple of 8 from 8 to 64, got 33"):
        resolved(width_px=33)


def test_a_prompt_never_appears_in_its_error() -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolved(prompt="canary" * 5000)

    assert "canary" not in caught.value.message


def test_eta_belongs_to_ddim() -> None:
    assert resolved(eta=0.5).spec.eta == 0.5
    with pytest.raises(InvalidArgument, match="eta: must be 0 with scheduler euler"):
        resolved(eta=0.5, scheduler="euler")


# Width and height as diffusers' VaeImageProcessor rounds them (`get_default_height_width`, scale factor 8).
IMAGE_SIZES = [
    ((64, 64), (64, 64)),
    ((48, 40), (48, 40)),
    ((63, 33), (56, 32)),
    ((8, 15), (8, 8)),
    ((71, 64), (64, 64)),
]


@pytest.mark.parametrize(("image_size", "size"), IMAGE_SIZES)
def test_image_without_size_keeps_its_own(image_size: tuple[int, int], size: tuple[int, int]) -> None:
    spec = resolved(init_image=InitImage(a_png(*image_size), 0.5)).spec

    assert (spec.width_px, spec.height_px) == size


def test_image_with_size_is_resized() -> None:
    spec = resolved(init_image=InitImage(a_png(300, 48), 0.5), width_px=16, height_px=24).spec

    assert (spec.width_px, spec.height_px) == (16, 24)


def test_image_with_one_side_keeps_the_other() -> None:
    spec = resolved(init_image=InitImage(a_png(48, 40), 0.5), width_px=16).spec

    assert (spec.width_px, spec.height_px) == (16, 40)


@pytest.mark.parametrize("image_size", [(72, 64), (64, 100), (7, 40)])
def test_image_outside_the_models_sizes_is_refused(image_size: tuple[int, int]) -> None:
    shown = " x ".join(map(str, image_size))
    limit = f"init_image.image: must have sides of 8 to 64 pixels without a size, got {shown}"
    with pytest.raises(InvalidArgument, match=limit):
        resolved(init_image=InitImage(a_png(*image_size), 0.5))


def test_a_request_above_the_cost_cap_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="must be at most 409600 pixel steps"):
        resolved(width_px=64, height_px=64, num_inference_steps=101)


def test_a_request_above_its_own_max_cost_is_refused() -> None:
    cost = resolved().cost

    assert resolved(max_cost=cost).cost == cost
    with pytest.raises(InvalidArgument, match="max_cost"):
        resolved(max_cost=cost - 1)


@pytest.mark.parametrize(
    ("image", "strength", "field"),
    [
        (b"", 0.5, "init_image.image"),
        (b"GIF89a", 0.5, "init_image.image"),
        (b"\x89PNG\r\n\x1a\n", 0.5, "init_image.image"),
        (b"x" * (LIMITS.max_init_image_bytes + 1), 0.5, "init_image.image"),
        (a_png(8, 8), math.nan, "init_image.strength"),
        (a_png(8, 8), -0.1, "init_image.strength"),
        (a_png(8, 8), 1.1, "init_image.strength"),
        (a_png(8, 8), 0.01, "init_image.strength"),
    ],
)
def test_a_bad_start_image_is_refused(image: bytes, strength: float, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolved(init_image=InitImage(image, strength))

    assert [violation.field for violation in caught.value.violations] == [field]


def jpeg(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "jpeg")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("mask", "limit"),
    [
        (b"GIF89a", "must be a PNG, JPEG or WebP image"),
        (jpeg(16, 8), "must be a PNG image, got JPEG"),
        (a_png(8, 16), "must be of the image's size, 16 x 8, got 8 x 16"),
        (b"x" * (LIMITS.max_init_image_bytes + 1), "must have at most 8388608 bytes, got 8388609"),
    ],
)
def test_a_bad_mask_is_refused_by_name(mask: bytes, limit: str) -> None:
    with pytest.raises(InvalidArgument, match=limit) as caught:
        resolved(init_image=InitImage(a_png(16, 8), 0.5, mask))

    assert [violation.field for violation in caught.value.violations] == ["init_image.mask"]


def test_a_mask_of_the_image_s_size_is_kept_beside_it() -> None:
    asked = InitImage(a_png(16, 8), 0.5, a_png(16, 8))

    assert resolved(init_image=asked).spec.init_image == asked
    assert not resolved(init_image=asked).cacheable


@pytest.mark.parametrize("count", [0, -1, 11, 2**62])
def test_a_number_of_pictures_out_of_bounds_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgument, match="image_count: must be between 1 and 10"):
        resolved(image_count=count)


def test_the_cost_of_all_pictures_together_is_limited() -> None:
    assert resolved(width_px=64, height_px=64, num_inference_steps=10, image_count=10).cost == 64 * 64 * 10
    with pytest.raises(InvalidArgument, match="x image_count: must be at most 409600 pixel steps, got 450560"):
        resolved(width_px=64, height_px=64, num_inference_steps=11, image_count=10)
    with pytest.raises(InvalidArgument, match="max_cost"):
        resolved(image_count=2, max_cost=resolved().cost * 2 - 1)


def test_a_limit_that_is_told_is_the_limit() -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_cost(14_548_942.0, 1.0, RequestLimits())

    told = re.search(r"cost, ([0-9.e+]+) pixel steps", refused.value.message)
    assert told is not None
    check_cost(14_548_942.0, float(told[1]), RequestLimits())
    with pytest.raises(InvalidArgument, match="deadline_ms: must be between 1 and 3600000, got 0"):
        resolve_limits(0, 0, RequestLimits())


@pytest.mark.parametrize(
    ("step_s", "asked", "expected_s"),
    [
        (0.0, {}, 120),
        (0.5, {}, 120),
        (7.0, {}, 1050),
        (7.0, {"num_inference_steps": 10}, 210),
        (7.0, {"width_px": 64, "height_px": 64, "num_inference_steps": 10}, 840),
        (7.0, {"num_inference_steps": 10, "image_count": 2}, 420),
        (700.0, {}, 3600),
        (7.0, {"deadline_ms": 5000}, 5),
    ],
)
def test_default_deadline_scales_with_measured_step(step_s: float, asked: dict[str, Any], expected_s: int) -> None:
    held = replace(HELD, step_s=step_s)
    request = ImageRequest(**{"prompt": "a red circle", **asked})

    found = resolve(request, held, AdapterCatalogue(), RequestLimits(), drawn_seed=7)

    assert found.deadline_ms == expected_s * 1000


def test_a_decompression_bomb_is_refused_by_its_header() -> None:
    """8 MB of pixels promised by 70 bytes of file; the promise alone is judged."""
    bomb = bytearray(a_png(8, 8))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2

    with pytest.raises(InvalidArgument, match="must have at most 8388608 pixels, got 60000 x 60000"):
        resolved(init_image=InitImage(bytes(bomb), 0.5))


def test_a_picture_from_the_clients_own_image_stays_out_of_the_cache() -> None:
    assert resolved().cacheable
    assert not resolved(init_image=InitImage(a_png(8, 8), 0.5)).cacheable
    assert not resolved(cache=CacheMode.OFF).cacheable


@pytest.mark.parametrize("key", ["x" * 129, "a\0b", "line\nbreak"])
def test_a_bad_idempotency_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match="idempotency_key"):
        check_idempotency_key(key, LIMITS)


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
