"""`pentimento jobs`: images of jobs in their files."""

from collections.abc import Generator
from pathlib import Path

import pytest

from pentimento.cli.generate import watch
from pentimento.cli.jobs import save_all
from pentimento.domain.image_request import Completed, GenerateEvent, ImageFormat
from pentimento.sdk import GeneratedImage, ImageSet
from tests.support.values import a_provenance

PROVENANCE = a_provenance(request_id="r-1")


def test_stream_of_image_is_read_to_its_end(tmp_path: Path) -> None:
    """A call that is broken off leaves memory behind in a server (grpc/grpc#43360)."""
    ended: list[bool] = []

    def events() -> Generator[GenerateEvent, None, None]:
        yield Completed("r-1", b"png", ImageFormat.PNG, 16, 8, PROVENANCE)
        ended.append(True)

    picture = watch(events(), tmp_path / "picture.png", quiet=True)

    assert (picture.data, ended) == (b"png", [True])


def test_file_of_image_has_suffix_of_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    save_all(ImageSet("r", (GeneratedImage(b"jpeg", ImageFormat.JPEG, 16, 8, PROVENANCE),)), as_json=True)

    assert [path.name for path in tmp_path.iterdir()] == ["r-1.jpeg"]
