"""Pictures as OpenAI's clients read them. Pure.

`usage` counts what there is to count here: a text token is 4 bytes of UTF-8 of the prompts, begun ones included, an
image token 8 × 8 pixels, one position of a latent.
"""

from collections.abc import Sequence
from typing import Any

from pentimento.domain.generation import GenerationSpec
from pentimento.domain.image_request import Completed, PictureFailed
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
    """Return `high` where all steps are taken, `medium` where some are reused or left out."""
    return "medium" if saved_steps else "high"


def usage_of(pictures: list[Completed]) -> dict[str, Any]:
    """Return what the pictures of one call amount to together."""
    spec = pictures[0].provenance.spec
    text = text_tokens(spec)
    images = len(pictures) * pixel_tokens(spec)
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


def picture_document(completed: Completed, with_provenance: bool, url: str = "") -> dict[str, Any]:
    """Return one picture of an answer, its address where it has one; `request_id` and `seed` are how to come back to
    it."""
    document: dict[str, Any] = {
        **({"url": url} if url else {"b64_json": Base64(completed.image)}),
        "request_id": completed.request_id,
        "image_index": completed.image_index,
        "seed": completed.provenance.spec.seed,
    }
    if with_provenance:
        document["provenance"] = provenance_as_json(completed.provenance)
    return document


def pictures_document(
    pictures: list[Completed],
    failed: list[PictureFailed],
    created_s: int,
    with_provenance: bool = False,
    urls: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a whole answer; `created_s` is a Unix time. `failed` is there only where some of several did not come;
    `urls` are the addresses of the others, where they come as such."""
    document: dict[str, Any] = {
        "created": created_s,
        "background": "opaque",
        "data": [
            picture_document(completed, with_provenance, urls[index] if urls else "")
            for index, completed in enumerate(pictures)
        ],
        "output_format": pictures[0].format.value,
        "quality": quality_of(pictures[0]),
        "size": size_of(pictures[0]),
        "usage": usage_of(pictures),
    }
    if failed:
        document["failed"] = [failure_document(one) for one in failed]
    return document


def failure_document(failed: PictureFailed) -> dict[str, Any]:
    """Return which of several pictures will not come, and why."""
    return {"request_id": failed.request_id, "image_index": failed.image_index, **error_document(failed.error)}
