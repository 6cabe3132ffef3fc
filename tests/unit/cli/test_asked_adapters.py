from pathlib import Path

import pytest

from pentimento.cli.generate import controlnet_of, lora_of
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import AskedControlNet, AskedLora


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "edges.png"
    file.write_bytes(b"png")
    return file


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("neon", AskedLora("neon")),
        ("neon:0.8", AskedLora("neon", 0.8)),
        ("neon:-1", AskedLora("neon", -1.0)),
        ("../neon", AskedLora("../neon")),
    ],
)
def test_a_lora_has_a_name_and_perhaps_a_scale(text: str, asked: AskedLora) -> None:
    assert lora_of(text) == asked


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ("", (None, None, None)),
        (":0.5", (0.5, None, None)),
        (":0.5:0-0.4", (0.5, 0.0, 0.4)),
        (":1:0.25-1", (1.0, 0.25, 1.0)),
    ],
)
def test_a_controlnet_has_a_file_and_perhaps_a_scale_and_shares(
    image: Path, limits: str, asked: tuple[float | None, float | None, float | None]
) -> None:
    assert controlnet_of(f"edges:{image}{limits}") == AskedControlNet("edges", b"png", *asked)


def test_a_file_may_have_a_colon_in_its_name(tmp_path: Path) -> None:
    odd = tmp_path / "a:1:0-1"
    odd.write_bytes(b"odd")

    assert controlnet_of(f"edges:{odd}").conditioning_image == b"odd"
    assert controlnet_of(f"edges:{odd}:0.5:0-1") == AskedControlNet("edges", b"odd", 0.5, 0.0, 1.0)


@pytest.mark.parametrize("text", ["neon:", "neon:x", "neon:0.5:1"])
def test_a_lora_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"lora: must be NAME\[:SCALE\]"):
        lora_of(text)


@pytest.mark.parametrize("rest", ["", ":", ":{}:x", ":{}:1:5", ":{}:1:a-b", ":{}:1:0-1:2", ":/no/such", ":\0"])
def test_a_controlnet_of_another_form_is_refused(image: Path, rest: str) -> None:
    with pytest.raises(InvalidArgument, match="controlnet: must be NAME:FILE"):
        controlnet_of("edges" + rest.format(image))
