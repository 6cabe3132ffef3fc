"""`pentimento jobs`: pictures of jobs in their files."""

from pathlib import Path

import pytest

from pentimento.cli.jobs import save_all
from pentimento.domain.generation import FromNoise, GenerationSpec, Provenance, Route, Scheduler
from pentimento.domain.image_request import ImageFormat
from pentimento.sdk import Picture, PictureSet


def test_a_picture_s_file_is_named_by_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = GenerationSpec("a circle", "", "tiny", 16, 8, 20, 3.0, Scheduler.DDIM, 7)
    provenance = Provenance("r-1", spec, Route("r", FromNoise(), "tiny", "sha256:0"), "sha256:0", "w", 1, 1, 20, 0, "1")

    save_all(PictureSet("r", (Picture(b"jpeg", ImageFormat.JPEG, 16, 8, provenance),)), as_json=True)

    assert [path.name for path in tmp_path.iterdir()] == ["r-1.jpeg"]
