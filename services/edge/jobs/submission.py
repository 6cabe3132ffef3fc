"""Read a submission: a generation or an edit, as JSON or as a form, and its webhook."""

from typing import Any

from starlette.requests import Request

from pentimento.domain.errors import InvalidArgument
from services.edge.http.bodies import HeldBody
from services.edge.http.forms import read_form
from services.edge.images.form_values import edit_form, edit_of_json, texts_of
from services.edge.images.image_call import ImageCall, image_call
from services.edge.images.routes import (
    EDIT_FIELDS_BY_NAME,
    GENERATION_FIELDS_BY_NAME,
    JSON_EDIT_FIELDS_BY_NAME,
    JSON_TYPE,
    read_document,
)
from services.edge.images.values import json_of, validated
from services.edge.parts import EdgeParts

FORM_TYPE = "multipart/form-data"
WEBHOOK = "webhook"


async def read_job(parts: EdgeParts, request: Request, held: HeldBody) -> tuple[ImageCall, str]:
    """Return a submission's call and the URL of its webhook. InvalidArgument names a wrong field."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON_TYPE, FORM_TYPE):
        raise InvalidArgument.of("Content-Type", f"must be {JSON_TYPE} or {FORM_TYPE}")
    read = read_json_job if kind == JSON_TYPE else read_edit_job
    asked, webhook_url = await read(parts, request, held)
    if asked.stream:
        raise InvalidArgument.of("stream", "must be false: use /v1/jobs/{id}/events")
    return asked, webhook_url


async def read_json_job(parts: EdgeParts, request: Request, held: HeldBody) -> tuple[ImageCall, str]:
    """Read a JSON body: an edit if it has an image, else a generation."""
    values = await read_document(parts, request, held)
    webhook_url = webhook_url_of(values.pop(WEBHOOK, None))
    if any(values.get(name) is not None for name in ("image", "images")):
        edit = edit_of_json(values, JSON_EDIT_FIELDS_BY_NAME)
        return image_call(edit.values, edit.image, edit.mask), webhook_url
    return image_call(validated(values, GENERATION_FIELDS_BY_NAME)), webhook_url


async def read_edit_job(parts: EdgeParts, request: Request, held: HeldBody) -> tuple[ImageCall, str]:
    """Read a form; its webhook is JSON in a text."""
    http = parts.settings.http
    given = await read_form(request, held, http.max_body_bytes, http.max_parts)
    texts = texts_of([part for part in given if part.name == WEBHOOK])
    form = edit_form([part for part in given if part.name != WEBHOOK], EDIT_FIELDS_BY_NAME)
    try:
        webhook_url = webhook_url_of(json_of(texts.get(WEBHOOK, "null")))
    except (ValueError, RecursionError):
        raise no_webhook() from None
    return image_call(form.values, form.image, form.mask), webhook_url


def webhook_url_of(given: Any) -> str:
    """Return the URL of a submission's webhook, "" without one. Raises InvalidArgument."""
    if given is None:
        return ""
    if not isinstance(given, dict) or set(given) != {"url"} or not isinstance(given["url"], str) or not given["url"]:
        raise no_webhook()
    url: str = given["url"]
    try:
        url.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        raise no_webhook() from None
    return url


def no_webhook() -> InvalidArgument:
    return InvalidArgument.of(WEBHOOK, 'must be {"url": "https://…"}')
