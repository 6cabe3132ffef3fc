"""Answers with images in OpenAI's format. Pure.

`usage` counts in units of this suite: a text token is 4 bytes of the prompts in UTF-8, rounded up; an image token is
8 × 8 pixels, one position of a latent.
"""

from collections.abc import Sequence
from typing import Any

from pentimento.domain.generation import GenerationSpec
from pentimento.domain.image_request import Completed, ImageFailed
from pentimento.domain.provenance_document import provenance_as_json
from services.edge.http.documents import Base64
from services.edge.http.errors import error_document

BYTES_A_TEXT_TOKEN = 4
PIXELS_AN_IMAGE_TOKEN = 64


def size_of(completed: Completed) -> str:
    """Return WIDTHxHEIGHT in pixels."""
    return f"{completed.width_px}x{completed.height_px}"


def quality_of(completed: Completed) -> str:
    """Return the quality of a finished image."""
    provenance = completed.provenance
    return quality_word(provenance.steps_saved + len(provenance.route.thinned_steps))


def quality_word(saved_steps: int) -> str:
    """Return `high` if all steps ran, `medium` if some were reused or skipped."""
    return "medium" if saved_steps else "high"


def usage_of(completed: list[Completed]) -> dict[str, Any]:
    """Return the usage of all images of a call."""
    spec = completed[0].provenance.spec
    text = text_tokens(spec)
    images = len(completed) * pixel_tokens(spec)
    given = pixel_tokens(spec) if spec.init_image is not None else 0
    return {
        "input_tokens": text + given,
        "input_tokens_details": {"text_tokens": text, "image_tokens": given},
        "output_tokens": images,
        "output_tokens_details": {"text_tokens": 0, "image_tokens": images},
        "total_tokens": text + given + images,
    }


def text_tokens(spec: GenerationSpec) -> int:
    size = len(spec.prompt.encode()) + len(spec.negative_prompt.encode())
    return -(-size // BYTES_A_TEXT_TOKEN)


def pixel_tokens(spec: GenerationSpec) -> int:
    return -(-spec.width_px * spec.height_px // PIXELS_AN_IMAGE_TOKEN)


def image_document(completed: Completed, with_provenance: bool, url: str = "") -> dict[str, Any]:
    """Return one image of an answer, with its URL if it has one; `request_id` and `seed` identify it later."""
    document: dict[str, Any] = {
        **({"url": url} if url else {"b64_json": Base64(completed.image)}),
        "request_id": completed.request_id,
        "image_index": completed.image_index,
        "seed": completed.provenance.spec.seed,
    }
    if with_provenance:
        document["provenance"] = provenance_as_json(completed.provenance)
    return document


def images_document(
    completed: list[Completed],
    failed: list[ImageFailed],
    created_s: int,
    with_provenance: bool = False,
    urls: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a whole answer. `created_s` is a Unix time; `failed` has the failed ones of several images; `urls` has the
    URLs of the others, if requested."""
    document: dict[str, Any] = {
        "created": created_s,
        "background": "opaque",
        "data": [
            image_document(one, with_provenance, urls[index] if urls else "") for index, one in enumerate(completed)
        ],
        "output_format": completed[0].format.value,
        "quality": quality_of(completed[0]),
        "size": size_of(completed[0]),
        "usage": usage_of(completed),
    }
    if failed:
        document["failed"] = [failure_document(one) for one in failed]
    return document


def failure_document(failed: ImageFailed) -> dict[str, Any]:
    """Return a failed image of several, with its error."""
    return {"request_id": failed.request_id, "image_index": failed.image_index, **error_document(failed.error)}
