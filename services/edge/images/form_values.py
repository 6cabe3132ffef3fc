"""Read an edit from a form or from JSON: its values, image and mask. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pentimento.domain.errors import InvalidArgument
from services.edge.http.forms import FormPart
from services.edge.images.fields import RequestField
from services.edge.images.values import from_texts, shown, validated

# One file, or a list of one in the notation of OpenAI's clients.
IMAGE_NAMES = ("image", "image[]")
MASK_NAME = "mask"


@dataclass(frozen=True)
class EditForm:
    """Hold an edit's values; `mask` is empty without one."""

    values: dict[str, Any]
    image: bytes
    mask: bytes


def edit_form(parts: list[FormPart], fields: Mapping[str, RequestField]) -> EditForm:
    """Read an edit from a form. InvalidArgument names a field that is missing, repeated or unknown."""
    image = one_image([part.data for part in parts if part.name in IMAGE_NAMES])
    masks = [part.data for part in parts if part.name == MASK_NAME]
    if len(masks) > 1:
        raise InvalidArgument.of("mask", f"must be one file, got {len(masks)}")
    texts = texts_of([part for part in parts if part.name not in (*IMAGE_NAMES, MASK_NAME)])
    if not image:
        raise InvalidArgument.of("image", "must be a PNG, JPEG or WebP file, got none")
    if masks and not masks[0]:
        raise InvalidArgument.of("mask", "must be a PNG, JPEG or WebP file, got none")
    return EditForm(validated(from_texts(texts, fields), fields), image, masks[0] if masks else b"")


def one_image(images: list[bytes]) -> bytes:
    """Return the image that an edit starts from. InvalidArgument for none or several."""
    if not images:
        raise InvalidArgument.of("image", "must be one image to start from, got none")
    if len(images) > 1:
        raise InvalidArgument.of("image", f"must be one image: no model here accepts several, got {len(images)}")
    return images[0]


def edit_of_json(document: Mapping[str, Any], fields: Mapping[str, RequestField]) -> EditForm:
    """Read an edit from JSON, with images in data URLs. InvalidArgument like `edit_form`."""
    values = validated(document, fields)
    image = one_image([*values.pop("images", ()), *values.pop("image", ())])
    return EditForm(values, image, values.pop("mask", b""))


def texts_of(parts: list[FormPart]) -> dict[str, str]:
    """Return the texts of form parts by name."""
    texts: dict[str, str] = {}
    for part in parts:
        if part.is_file:
            raise InvalidArgument.of(shown(part.name), "must be a text, not a file")
        if part.name in texts:
            raise InvalidArgument.of(shown(part.name), "must occur once")
        try:
            texts[part.name] = part.data.decode()
        except UnicodeDecodeError:
            raise InvalidArgument.of(shown(part.name), "must be text in UTF-8") from None
    return texts
