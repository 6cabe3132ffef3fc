"""`pentimento replay` reads from a file the number of a request, and nothing else."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from pentimento.cli import cli
from pentimento.cli.options import duration_ms
from pentimento.cli.replay import have_same_pixels, request_of, told, verdict
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import PinnedImage, ReplayInput, ReplayRequest
from pentimento.images.png import HEADER_END, png_chunk

OPTIONS: dict[str, Any] = {
    "init_image": None,
    "mask": None,
    "conditioning_images": (),
    "image_prompts": (),
    "deadline": None,
}


def image_with(provenance: object) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    png = buffer.getvalue()
    text = json.dumps(provenance).encode()
    return png[:HEADER_END] + png_chunk(b"iTXt", b"pentimento\0\0\0\0\0" + text) + png[HEADER_END:]


def test_a_forged_start_goes_nowhere() -> None:
    latent = {"kind": "FromLatent", "latent": {"key": "latents/of-another-tenant", "digest": "sha256:1"}}
    forged = image_with({"request_id": "r-1", "route": {"start": latent}})

    assert request_of(forged, OPTIONS) == ReplayRequest("r-1")


def test_init_image_and_mask_go_along(tmp_path: Path) -> None:
    for name in ("init", "mask"):
        (tmp_path / name).write_bytes(name.encode())
    given = OPTIONS | {"init_image": tmp_path / "init", "mask": tmp_path / "mask", "deadline": 1.5}

    request = request_of(image_with({"request_id": "r-1"}), given)

    inputs = (ReplayInput("init_image.image", b"init"), ReplayInput("init_image.mask", b"mask"))
    assert request == ReplayRequest("r-1", inputs, 1500)


def test_the_images_that_controlnets_went_by_go_along_in_their_order(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("edges.png", "layout.png")]
    for file in files:
        file.write_bytes(file.stem.encode())

    request = request_of(image_with({"request_id": "r-1"}), OPTIONS | {"conditioning_images": tuple(files)})

    assert request.inputs == (
        ReplayInput("controlnets[0].conditioning_image", b"edges"),
        ReplayInput("controlnets[1].conditioning_image", b"layout"),
    )


def test_whatever_a_request_comes_with_has_an_option_to_give_it_again(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(image_with({"request_id": "r-1"}))
    files = [f"--{name}={tmp_path / 'picture.png'}" for name in ("init-image", "mask", "conditioning-image")]

    done = CliRunner().invoke(
        cli, ["replay", str(tmp_path / "picture.png"), *files, f"--state-dir={tmp_path / 'none'}"]
    )

    assert "no suite serves from" in str(done.exception)


@pytest.mark.parametrize("provenance", [{}, {"request_id": 1}, {"request_id": None}, {"request_id": "\ud800"}, []])
def test_a_file_that_names_no_request_is_refused(provenance: object) -> None:
    with pytest.raises(InvalidArgument):
        request_of(image_with(provenance), OPTIONS)


@pytest.mark.parametrize(
    ("text", "found_ms"), [("30d", 2_592_000_000), ("1.5h", 5_400_000), ("90m", 5_400_000), ("2S", 2000)]
)
def test_times_are_read_with_their_units(text: str, found_ms: int) -> None:
    assert duration_ms("for", text) == found_ms


@pytest.mark.parametrize(
    "text", ["", "d", "30", "30w", "-1d", "0d", "1e3d", "nand", "9" * 30 + "d", "9" * 400 + "d", "٣d ", "1.2.3d"]
)
def test_duration_without_time_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArgument, match="for: must be a number"):
        duration_ms("for", text)


@pytest.mark.parametrize("command", [["replay"], ["pin", "--for", "30d"], ["unpin"]])
def test_without_a_suite_each_says_so(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "picture.png").write_bytes(image_with({"request_id": "r-1"}))

    done = CliRunner().invoke(cli, [*command, str(tmp_path / "picture.png"), "--state-dir", str(tmp_path / "none")])

    assert done.exit_code == 1 and "no suite serves from" in str(done.exception)


def test_pin_is_reported() -> None:
    told_of = told(Path("a.png"), PinnedImage("r-1", 1_700_000_000_000, 5000, inputs_kept=False))

    assert told_of.startswith("a.png can be replayed until 2023-11-14 22:13 UTC (5000 bytes pinned; a replay needs")


def png_of(colour: tuple[int, int, int], level: int = 6, size: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(buffer, "PNG", compress_level=level)
    return buffer.getvalue()


def test_images_compressed_differently_have_same_pixels() -> None:
    red, recompressed = png_of((255, 0, 0)), png_of((255, 0, 0), level=0)

    assert red != recompressed
    assert have_same_pixels(red, recompressed)
    assert not have_same_pixels(red, png_of((254, 0, 0)))
    assert not have_same_pixels(red, png_of((255, 0, 0), size=9))
    assert not have_same_pixels(red, b"no image")


@pytest.mark.parametrize(
    ("same_pixels", "same_bytes", "replay_equal", "said"),
    [
        (True, True, True, "the same pixels as a.png, and the same bytes"),
        (True, False, False, "the same pixels as a.png; the file differs"),
        (
            False,
            False,
            True,
            "the same image as the first time, but other pixels than a.png: the file was changed",
        ),
        (
            False,
            False,
            False,
            "other pixels than a.png: it was generated among others, on another device or by another build",
        ),
    ],
)
def test_verdict_promises_pixels(same_pixels: bool, same_bytes: bool, replay_equal: bool, said: str) -> None:
    painted: Any = SimpleNamespace(provenance=SimpleNamespace(replay_equal=replay_equal))

    assert verdict(Path("a.png"), painted, same_pixels=same_pixels, same_bytes=same_bytes) == said
