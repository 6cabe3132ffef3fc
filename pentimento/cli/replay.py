"""`pentimento replay IMAGE.png`."""

import io
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pentimento.cli.calls import frontdoor_client
from pentimento.cli.connection import PRESENT, connection_options
from pentimento.cli.generate import deadline_ms, summary, watch
from pentimento.cli.options import FINITE, duration_ms, say
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import PinnedImage, ReplayInput, ReplayRequest
from pentimento.domain.provenance_document import provenance_as_json
from pentimento.files.json_values import check_folder
from pentimento.sdk.generated_image import GeneratedImage, read_provenance, without_provenance

# The largest image or input file; servers send and accept less.
MAX_FILE_BYTES = 256 << 20
INIT_IMAGE, MASK, CONDITIONING_IMAGE = "init_image.image", "init_image.mask", "controlnets[{}].conditioning_image"
IMAGE_PROMPT = "image_prompts[{}].image"


@click.command()
@click.argument("image", metavar="IMAGE", type=PRESENT)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="PNG to write [IMAGE-replay.png]")
@click.option("--init-image", type=PRESENT, help="the request's input image, if it had one")
@click.option("--mask", type=PRESENT, help="the request's mask, if it had one")
@click.option(
    "--conditioning-image",
    "conditioning_images",
    multiple=True,
    type=PRESENT,
    help="conditioning image of the request's first ControlNet; repeat for the others, in order",
)
@click.option(
    "--image-prompt",
    "image_prompts",
    multiple=True,
    type=PRESENT,
    help="image of the request's first image prompt; repeat for the others, in order",
)
@click.option("--deadline", type=FINITE, metavar="SECONDS", help="fail after this time")
@connection_options
def replay(image: Path, output: Path | None, as_json: bool, **options: Any) -> int:
    """Generate IMAGE, a PNG of `pentimento generate`, again: from the same start, with the same weights, alone.

    The pixels are equal if IMAGE was also generated alone, on the same kind of device and by the same build. The exit
    code is 0 for equal pixels and 3 for others.
    """
    png = read_file(image)
    request = request_of(png, options)
    if output is not None:
        check_folder("output", output)
    with frontdoor_client(options) as client, closing(client.replay_stream(request)) as events:
        replayed = watch(events, image, quiet=as_json)
    saved = replayed.save(output or image.with_name(f"{image.stem}-replay.png"))
    bare = without_provenance(png)
    same_bytes = replayed.data == bare
    same_pixels = same_bytes or have_same_pixels(replayed.data, bare)
    same = {"same_pixels": same_pixels, "same_bytes": same_bytes}
    document = {"file": str(saved), **same, **provenance_as_json(replayed.provenance)}
    say(document, f"{summary(saved, replayed)}\n{verdict(image, replayed, **same)}", as_json=as_json)
    return 0 if same_pixels else 3


def have_same_pixels(one: bytes, other: bytes) -> bool:
    """Return whether two files have the same pixels, independent of their compression."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(one)) as first, Image.open(io.BytesIO(other)) as second:
            return first.size == second.size and first.convert("RGB").tobytes() == second.convert("RGB").tobytes()
    except (OSError, ValueError, Image.DecompressionBombError):
        return False


def read_file(path: Path) -> bytes:
    """Return the file's bytes. InvalidArgument for a file that is too large for an image."""
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidArgument.of(str(path), f"must have at most {MAX_FILE_BYTES} bytes")
    return data


def request_of(png: bytes, options: dict[str, Any]) -> ReplayRequest:
    """Return the replay of the request that the file names. The server uses its own record of the provenance."""
    files = {place: file for place, file in ((INIT_IMAGE, options["init_image"]), (MASK, options["mask"])) if file}
    files |= {CONDITIONING_IMAGE.format(index): file for index, file in enumerate(options["conditioning_images"])}
    files |= {IMAGE_PROMPT.format(index): file for index, file in enumerate(options["image_prompts"])}
    inputs = tuple(ReplayInput(place, read_file(file)) for place, file in files.items())
    return ReplayRequest(request_id_of(png), inputs, deadline_ms(options["deadline"]))


def request_id_of(png: bytes) -> str:
    """Return the request id in an image file. InvalidArgument without one."""
    request_id = read_provenance(png).get("request_id")
    if not isinstance(request_id, str) or not request_id.isascii():
        raise InvalidArgument.of("png", "must name the request that it was generated for")
    return request_id


def verdict(image: Path, replayed: GeneratedImage, *, same_pixels: bool, same_bytes: bool) -> str:
    """Return a line that says whether the replayed image is the same."""
    if same_pixels:
        return f"the same pixels as {image}" + (", and the same bytes" if same_bytes else "; the file differs")
    if replayed.provenance.replay_equal:
        return f"the same image as the first time, but other pixels than {image}: the file was changed"
    return f"other pixels than {image}: it was generated among others, on another device or by another build"


@click.command()
@click.argument("image", metavar="IMAGE", type=PRESENT)
@click.option("--for", "duration", required=True, metavar="TIME", help="from now: 30d, 12h, 90m")
@connection_options
def pin(image: Path, duration: str, as_json: bool, **options: Any) -> None:
    """Keep the start of IMAGE, a PNG of `pentimento generate`, so that it can be replayed until then.

    A repeated call sets a new time. Input images are kept only by `generate --pin`; otherwise a replay needs them
    again.
    """
    request_id, asked_ms = request_id_of(read_file(image)), duration_ms("for", duration)
    with frontdoor_client(options) as client:
        pinned = client.pin(request_id, asked_ms)
    say({"file": str(image), **vars(pinned)}, told(image, pinned), as_json=as_json)


def told(image: Path, pinned: PinnedImage) -> str:
    """Describe a pin: its end, its size and the inputs that a replay needs."""
    until = datetime.fromtimestamp(pinned.expires_at_ms / 1000, UTC)
    needs = "" if pinned.inputs_kept else "; a replay needs its input image"
    return f"{image} can be replayed until {until:%Y-%m-%d %H:%M} UTC ({pinned.size_bytes} bytes pinned{needs})"


@click.command()
@click.argument("image", metavar="IMAGE", type=PRESENT)
@connection_options
def unpin(image: Path, as_json: bool, **options: Any) -> None:
    """End the pin of IMAGE: the cache may evict its start again."""
    request_id = request_id_of(read_file(image))
    with frontdoor_client(options) as client:
        client.unpin(request_id)
    words = f"{image} is unpinned"
    say({"file": str(image), "request_id": request_id, "unpinned": True}, words, as_json=as_json)
