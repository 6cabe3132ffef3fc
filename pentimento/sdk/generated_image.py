"""Hold finished images: their bytes as the server sent them, their provenance, and PNGs that contain both."""

import dataclasses
import io
import json
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pentimento.domain.errors import Internal, InvalidArgument
from pentimento.domain.generation import Provenance
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed, ImageFormat
from pentimento.domain.provenance_document import provenance_as_json
from pentimento.images.png import (
    PROVENANCE_PREFIX,
    SIGNATURE,
    is_signed,
    leading_chunks,
    png_chunk,
    provenance_chunk,
    with_chunk,
)

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class GeneratedImage:
    """Hold a finished image. `data` is the encoded image; width and height in pixels."""

    data: bytes = dataclasses.field(repr=False)
    format: ImageFormat
    width_px: int
    height_px: int
    provenance: Provenance

    @classmethod
    def of(cls, completed: Completed) -> "GeneratedImage":
        """Build an image from the event that completed its request."""
        return cls(completed.image, completed.format, completed.width_px, completed.height_px, completed.provenance)

    def to_pil(self) -> "Image":
        """Return the image as a PIL image."""
        from PIL import Image

        return Image.open(io.BytesIO(self.data))

    def save(self, path: str | Path) -> Path:
        """Write the file atomically; a PNG contains its provenance, a signed one its request id. A device or a pipe is
        written to directly. OSError names the file."""
        target = Path(path)
        data = with_provenance(self.data, self.provenance) if self.format is ImageFormat.PNG else self.data
        try:
            if target.exists() and not target.is_file():
                target.write_bytes(data)
            else:
                _put(data, target)
        except OSError as error:
            # The error of a write has no name, that of the draft another one.
            raise OSError(error.errno, error.strerror, str(target)) from error
        return target


@dataclass(frozen=True)
class ImageSet:
    """Hold the results of a request for one or several images. `images` are in the order of their indexes; `failures`
    has the indexes that failed. `request_id` identifies the whole request."""

    request_id: str
    images: tuple[GeneratedImage, ...]
    failures: tuple[ImageFailed, ...] = ()

    def raise_failure(self) -> "ImageSet":
        """Return this set if no image failed, else raise the first error."""
        if self.failures:
            raise self.failures[0].error
        return self


async def images_of(stream: AsyncGenerator[GenerateEvent, None], *, one: bool = False) -> ImageSet:
    """Return the images of a stream, or raise the error at its end. InvalidArgument for several images where only `one`
    is expected."""
    request_id, images, failures = "", dict[int, GeneratedImage](), dict[int, ImageFailed]()
    async with aclosing(stream) as events:
        # Read to its end: a call that the client ends early leaks memory in a server (grpc/grpc#43360).
        async for event in events:
            match event:
                case Accepted():
                    if one and (count := len(event.image_request_ids)):
                        several = f"must be the id of one image, got one of {count}: wait_all has several"
                        raise InvalidArgument.of("request_id", several)
                    request_id = event.request_id
                case Completed():
                    images[event.image_index] = GeneratedImage.of(event)
                case ImageFailed():
                    failures[event.image_index] = event
    if not images:
        raise Internal("STREAM_ENDED_EARLY", "the stream ended without an image and without an error")
    in_order = tuple(images[index] for index in sorted(images))
    return ImageSet(request_id, in_order, tuple(failures[index] for index in sorted(failures)))


def _put(data: bytes, target: Path) -> None:
    # A unique name: others may save to the same path at the same time.
    draft = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        draft.write_bytes(data)
        draft.replace(target)
    except BaseException:
        # Also on an interrupt.
        draft.unlink(missing_ok=True)
        raise


def with_provenance(png: bytes, provenance: Provenance) -> bytes:
    """Return the PNG with an iTXt chunk `pentimento` (UTF-8 JSON) after its header. A signed PNG stays unchanged: its
    chunk names the request only."""
    return png if is_signed(png) else with_chunk(png, provenance_chunk(provenance_as_json(provenance)))


def without_provenance(png: bytes) -> bytes:
    """Return the PNG as the server sent it. InvalidArgument unless the file is a PNG with a provenance."""
    content = _provenance_text(png)
    chunk = png_chunk(b"iTXt", PROVENANCE_PREFIX + content)
    before, _, after = png.partition(chunk)
    return before + after


def read_provenance(png: bytes) -> dict[str, Any]:
    """Return the provenance in a PNG. InvalidArgument unless the file is a PNG with a provenance."""
    try:
        provenance = json.loads(_provenance_text(png))
    except (ValueError, RecursionError):
        provenance = None
    if not isinstance(provenance, dict):
        raise InvalidArgument.of("png", "must carry a pentimento provenance, it has something else")
    return provenance


def _provenance_text(png: bytes) -> bytes:
    if not png.startswith(SIGNATURE):
        raise InvalidArgument.of("png", "must be a PNG file")
    for kind, content in leading_chunks(png):
        if kind == b"iTXt" and content.startswith(PROVENANCE_PREFIX):
            return content[len(PROVENANCE_PREFIX) :]
    raise InvalidArgument.of("png", "must carry a pentimento provenance, it has none")
