"""Bodies of the console's calls, validated by the table of fields of the images API. Pure."""

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import GenerateEvent, ImageRequest, ReplayInput, ReplayRequest
from services.edge.console.streaming import OpenEvents
from services.edge.images.fields import EDIT_FIELDS, MAX_NAME_CHARS, FieldKind, RequestField, by_field_name
from services.edge.images.image_call import image_call
from services.edge.images.values import read_json, validated
from services.edge.images.waiting import events_of

MAX_PREVIEW_INTERVAL = 1000
MAX_NEIGHBOURS = 50
MAX_INPUTS = 8
# JavaScript's numbers are exact up to 2^53, seeds go up to 2^64.
SEED_TEXT = re.compile("[0-9]{1,20}", re.ASCII)
PREVIEW_FIELD = RequestField(
    "preview_every_steps",
    FieldKind.INTEGER,
    "steps between previews; 0 for none",
    least=0,
    most=MAX_PREVIEW_INTERVAL,
)
# A tab receives all events of its images.
OF_ANSWERS = ("stream", "partial_images", "response_format", "provenance")
GENERATE_FIELDS = by_field_name(
    (
        *(field for field in EDIT_FIELDS if field.name not in OF_ANSWERS),
        RequestField("image", FieldKind.BYTES, "the image to start from"),
        RequestField("mask", FieldKind.BYTES, "PNG of the image's size, white where the image may change"),
        PREVIEW_FIELD,
    )
)
EXPLAIN_FIELDS = by_field_name(
    (
        *(field for field in GENERATE_FIELDS.values() if field.name != "n"),
        RequestField(
            "neighbour_count", FieldKind.INTEGER, "number of the cache's entries", least=0, most=MAX_NEIGHBOURS
        ),
    )
)
REPLAY_FIELDS = by_field_name(
    (
        RequestField(
            "request_id", FieldKind.TEXT, "the request to replay", required=True, least=1, most=MAX_NAME_CHARS
        ),
        RequestField(
            "inputs",
            FieldKind.OBJECTS,
            "the request's input images",
            items=(
                RequestField("field", FieldKind.TEXT, "the input's field", required=True, most=MAX_NAME_CHARS),
                RequestField("data", FieldKind.BYTES, "the input's bytes", required=True),
            ),
            most=MAX_INPUTS,
        ),
        PREVIEW_FIELD,
    )
)


def image_request_of(
    body: bytes, fields: Mapping[str, RequestField] = GENERATE_FIELDS
) -> tuple[ImageRequest, dict[str, Any]]:
    """Return a call's request and its other values; a seed may be a text. InvalidArgument names a wrong field."""
    given = read_json(body)
    if isinstance(seed := given.get("seed"), str) and SEED_TEXT.fullmatch(seed):
        given["seed"] = int(seed)
    values = validated(given, fields)
    if "mask" in values and "image" not in values:
        raise InvalidArgument.of("mask", "must come with an image")
    for name in ("image", "mask"):
        if values.get(name) == b"":
            raise InvalidArgument.of(name, "must be a PNG, JPEG or WebP file, got none")
    return image_call(values, values.get("image"), values.get("mask", b"")).request, values


def generate_call(body: bytes) -> OpenEvents:
    """Return the frontdoor's call for a request of the playground."""
    request, values = image_request_of(body)
    interval = values.get("preview_every_steps", 0)

    def ask(client: ImageClient, key: str, deadline_ms: int | None) -> AsyncGenerator[GenerateEvent, None]:
        return client.generate(replace(request, deadline_ms=deadline_ms), key, interval)

    return lambda client: events_of(client, partial(ask, client), deadline_ms=request.deadline_ms)


def replay_call(body: bytes) -> OpenEvents:
    """Return the frontdoor's call for a replay."""
    values = validated(read_json(body), REPLAY_FIELDS)
    inputs = tuple(ReplayInput(one["field"], one["data"]) for one in values.get("inputs", ()))
    request, interval = ReplayRequest(values["request_id"], inputs), values.get("preview_every_steps", 0)
    return lambda client: events_of(client, lambda key, _: client.replay(request, key, interval))
