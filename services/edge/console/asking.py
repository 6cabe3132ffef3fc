"""What the console's calls may say, by the table of fields of the images API. Pure."""

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import GenerateEvent, ImageRequest, ReplayRequest
from services.edge.console.painting import OpenEvents
from services.edge.images.asking import asked_pictures
from services.edge.images.fields import (
    EDIT_FIELDS,
    MAX_NAME_CHARS,
    FieldKind,
    RequestField,
    by_field_name,
)
from services.edge.images.values import judged, read_json
from services.edge.images.waiting import events_of

MAX_PREVIEW_INTERVAL = 1000
MAX_NEIGHBOURS = 50
MAX_INPUTS = 8
# Numbers of browsers are exact up to 2^53, seeds go up to 2^64.
SEED_TEXT = re.compile("[0-9]{1,20}", re.ASCII)
PREVIEW_FIELD = RequestField(
    "preview_every_steps",
    FieldKind.INTEGER,
    "a preview every so many steps; 0 for none",
    least=0,
    most=MAX_PREVIEW_INTERVAL,
)
# A tab hears all events of its pictures.
OF_ANSWERS = ("stream", "partial_images", "response_format", "provenance")
PAINT_FIELDS = by_field_name(
    (
        *(field for field in EDIT_FIELDS if field.name not in OF_ANSWERS),
        RequestField("image", FieldKind.BYTES, "to start from"),
        RequestField("mask", FieldKind.BYTES, "PNG of the image's size, white where it may change"),
        PREVIEW_FIELD,
    )
)
EXPLAIN_FIELDS = by_field_name(
    (
        *(field for field in PAINT_FIELDS.values() if field.name != "n"),
        RequestField("neighbour_count", FieldKind.INTEGER, "of the cache's entries", least=0, most=MAX_NEIGHBOURS),
    )
)
REPLAY_FIELDS = by_field_name(
    (
        RequestField("request_id", FieldKind.TEXT, "whose picture", required=True, least=1, most=MAX_NAME_CHARS),
        RequestField(
            "inputs",
            FieldKind.OBJECTS,
            "what it came with",
            items=(
                RequestField("field", FieldKind.TEXT, "its place", required=True, most=MAX_NAME_CHARS),
                RequestField("data", FieldKind.BYTES, "its bytes", required=True),
            ),
            most=MAX_INPUTS,
        ),
        PREVIEW_FIELD,
    )
)


def asked_picture(
    body: bytes, fields: Mapping[str, RequestField] = PAINT_FIELDS
) -> tuple[ImageRequest, dict[str, Any]]:
    """Return what a call asks to paint, and its other values; a seed may be the text of one. InvalidArgument names what
    is wrong."""
    given = read_json(body)
    if isinstance(seed := given.get("seed"), str) and SEED_TEXT.fullmatch(seed):
        given["seed"] = int(seed)
    values = judged(given, fields)
    if "mask" in values and "image" not in values:
        raise InvalidArgument.of("mask", "must come with the image that it lies on")
    for name in ("image", "mask"):
        if values.get(name) == b"":
            raise InvalidArgument.of(name, "must be a PNG, JPEG or WebP file, got none")
    return asked_pictures(values, values.get("image"), values.get("mask", b"")).request, values


def asked_painting(body: bytes) -> OpenEvents:
    """Return what a call of the playground asks of the frontdoor."""
    request, values = asked_picture(body)
    interval = values.get("preview_every_steps", 0)

    def ask(client: ImageClient, key: str, deadline_ms: int | None) -> AsyncGenerator[GenerateEvent, None]:
        return client.generate(replace(request, deadline_ms=deadline_ms), key, interval)

    return lambda client: events_of(client, partial(ask, client), deadline_ms=request.deadline_ms)


def asked_replay(body: bytes) -> OpenEvents:
    """Return what a call for a picture once more asks of the frontdoor."""
    values = judged(read_json(body), REPLAY_FIELDS)
    inputs = tuple((one["field"], one["data"]) for one in values.get("inputs", ()))
    request, interval = ReplayRequest(values["request_id"], inputs), values.get("preview_every_steps", 0)
    return lambda client: events_of(client, lambda key, _: client.replay(request, key, interval))
