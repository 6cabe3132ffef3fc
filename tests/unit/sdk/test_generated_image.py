"""A saved image has its provenance, and the server's pixels."""

import io
import json
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import (
    Donor,
    FromLatent,
    FromNoise,
    GenerationSpec,
    InitImage,
    ObjectReference,
    Provenance,
    Route,
    Scheduler,
    Start,
)
from pentimento.domain.image_request import ImageFormat
from pentimento.domain.provenance_document import provenance_as_json
from pentimento.images.png import HEADER_END, png_chunk
from pentimento.sdk.generated_image import GeneratedImage, read_provenance, with_provenance, without_provenance


def png() -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((16, 8)).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def provenance(prompt: str = "a red circle", start: Start | None = None, init: InitImage | None = None) -> Provenance:
    spec = GenerationSpec(prompt, "", "tiny", 16, 8, 20, 3.0, Scheduler.DDIM, 7, init_image=init)
    route = Route("route-1", start or FromNoise(), "tiny", "sha256:00")
    return Provenance("request-1", spec, route, "sha256:00", "worker-1", 3, 1, 20, 0, "0.1.0")


@given(prompt=st.text(max_size=200))
def test_provenance_survives_the_file_for_any_prompt(prompt: str) -> None:
    expected = provenance_as_json(provenance(prompt))

    assert read_provenance(with_provenance(png(), provenance(prompt))) == expected


def test_pixels_are_untouched_and_the_chunk_is_read_by_others() -> None:
    carried = with_provenance(png(), provenance("ein roter Kreis · 赤い円"))

    with Image.open(io.BytesIO(carried)) as image, Image.open(io.BytesIO(png())) as original:
        image.load()
        assert image.tobytes() == original.tobytes()
        assert json.loads(image.text["pentimento"])["spec"]["prompt"] == "ein roter Kreis · 赤い円"


def test_image_without_provenance_equals_bytes_of_server() -> None:
    assert without_provenance(with_provenance(png(), provenance("ein roter Kreis · 赤い円"))) == png()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_a_provenance_that_is_none_is_refused(text: bytes) -> None:
    forged = png_chunk(b"iTXt", b"pentimento\0\0\0\0\0" + text)

    with pytest.raises(InvalidArgument):
        read_provenance(png()[:HEADER_END] + forged + png()[HEADER_END:])


def test_start_says_which_kind_it_is() -> None:
    start = FromLatent(ObjectReference("k", "sha256:01", 9), 10, 50, 0.5, Donor("entry-1", "sha256:01", 0.9))

    document = provenance_as_json(provenance(start=start))

    assert document["route"]["start"]["kind"] == "FromLatent"
    assert document["route"]["start"]["donor"]["entry_id"] == "entry-1"


def test_init_image_is_named_by_its_digest() -> None:
    document = provenance_as_json(provenance(init=InitImage(b"image bytes", 0.5)))

    assert document["spec"]["init_image"]["image"].startswith("sha256:")


def test_save_leaves_nothing_but_the_file(tmp_path: Path) -> None:
    picture = GeneratedImage(png(), ImageFormat.PNG, 16, 8, provenance())

    picture.save(tmp_path / "picture.png")

    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]
    assert picture.to_pil().size == (16, 8)


def test_save_to_pipe_writes_into_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    picture = GeneratedImage(png(), ImageFormat.PNG, 16, 8, provenance())

    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        picture.save(pipe)
        written = os.read(reader, 1 << 16)
    finally:
        os.close(reader)

    assert pipe.is_fifo() and without_provenance(written) == png()


def test_save_without_space_leaves_no_file(tmp_path: Path) -> None:
    picture = GeneratedImage(png(), ImageFormat.PNG, 16, 8, provenance())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/picture\.png'$"):
            picture.save(tmp_path / "picture.png")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = GeneratedImage(png(), ImageFormat.PNG, 16, 8, provenance())

    def interrupted(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        picture.save(tmp_path / "picture.png")

    assert list(tmp_path.iterdir()) == []


def test_two_saves_to_one_path_each_write_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, replace = tmp_path / "picture.webp", Path.replace
    first, second = (GeneratedImage(data, ImageFormat.WEBP, 16, 8, provenance()) for data in (b"the first", b"second"))

    def after_the_second(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        second.save(place)
        assert place.read_bytes() == b"second"
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", after_the_second)
    first.save(place)

    assert place.read_bytes() == b"the first"
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("data", [b"", b"GIF89a", png()])
def test_file_without_provenance_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_provenance(data)
