"""Test the events of streamed images, and requested previews."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pentimento.domain.errors import Unavailable
from pentimento.domain.image_request import Accepted, ImageFailed, Progress
from services.edge.api.events import ImageEvents, error_event
from services.edge.api.images import preview_interval


def encoder(kind: str, partial_images: int = 2) -> ImageEvents:
    return ImageEvents(kind, partial_images, provenance=False, created_s=7)


def read(event: bytes | None) -> tuple[str, dict[str, Any]]:
    assert event is not None and event.endswith(b"\n\n")
    name, data = event.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_previews_are_numbered_by_image_up_to_the_requested_count() -> None:
    told = encoder("image_generation")
    preview = Progress(1, 9, b"png", width_px=64, height_px=32)

    first, second, other = told.of(preview), told.of(preview), told.of(replace(preview, image_index=1))

    assert told.of(preview) is None
    assert [read(event)[1]["partial_image_index"] for event in (first, second, other)] == [0, 1, 0]
    name, document = read(first)
    assert name == document["type"] == "image_generation.partial_image"
    assert (document["b64_json"], document["created_at"], document["size"]) == ("cG5n", 7, "64x32")


@pytest.mark.parametrize(("saved_steps", "quality"), [(0, "high"), (1, "medium")])
def test_partial_image_states_generated_size_and_quality(saved_steps: int, quality: str) -> None:
    preview = Progress(1, 9, b"png", width_px=96, height_px=64, saved_steps=saved_steps)

    _, document = read(encoder("image_generation", 1).of(preview))

    assert (document["size"], document["quality"]) == ("96x64", quality)


@pytest.mark.parametrize("event", [Accepted("r"), Progress(1, 9)])
def test_event_without_preview_is_omitted(event: Accepted | Progress) -> None:
    assert encoder("image_edit").of(event) is None


def test_failed_image_is_reported_by_name() -> None:
    failed = ImageFailed("r1", 1, Unavailable("WORKER_LOST", "gone"))

    name, document = read(encoder("image_edit").of(failed))

    assert (name, document["image_index"], document["error"]["code"]) == ("image_edit.failed", 1, "WORKER_LOST")


def test_error_ends_a_stream_as_openais_clients_expect() -> None:
    assert read(error_event(Unavailable("A", "a")))[1]["error"]["code"] == "A"


@pytest.mark.parametrize(
    ("steps", "partial", "interval"), [(50, 0, 0), (50, 1, 25), (50, 3, 12), (3, 3, 1), (1, 1, 1), (10_000, 1, 1000)]
)
def test_previews_are_spread_over_the_steps(steps: int, partial: int, interval: int) -> None:
    assert preview_interval(steps, partial) == interval
