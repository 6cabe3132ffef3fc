"""Test the input and output of `pentimento models`."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from pentimento.cli.models import add, cascade_words, describe, models_table, profile_text, read_cascade
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.models import RegisteredModels, ReuseProfile
from pentimento.files.json_values import from_json, to_json
from pentimento.supervisor.models import find_model
from tests.unit.controller.registered import cascade, unstated, variant

LIGHT = variant("light", ("gpu", 0.5), ("", 0.7))


def test_a_cascade_is_read_from_its_file(tmp_path: Path) -> None:
    three = cascade("light", "middle", "heavy")
    file = tmp_path / "cascade.json"
    file.write_text(json.dumps(to_json(three)))

    assert read_cascade(file) == three


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "file: must be JSON"),
        ('{"models": ["a"]}', "cascade.handovers"),
        ('{"models": "a", "handovers": []}', "cascade.models"),
        ('{"models": ["a"], "handovers": [], "more": 1}', "cascade.more"),
    ],
)
def test_a_file_that_is_no_cascade_is_refused_by_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cascade.json"
    file.write_text(text)

    with pytest.raises(InvalidArgument, match=message):
        read_cascade(file)


def test_cascade_words_name_shares_and_their_source() -> None:
    """A share of 0 is shown if it was measured, and not if it is unknown."""
    three = cascade("light", "middle", "heavy")
    stated, other = three.handovers
    measured = replace(other, reuse_share=0.0, reuse_profile=ReuseProfile("sha256:1", 0.9, "minimum"))

    words = cascade_words(replace(three, handovers=(stated, measured)))

    assert words == (
        "light → middle → heavy: discriminators light>middle, middle>heavy; middle spares 0.25 of its steps (stated); "
        "heavy spares 0 of its steps (profiled: keeps 0.9 by minimum)"
    )
    assert "spares" not in cascade_words(unstated(three))


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"{}" + b" " * 65_535, "profiles: must name files of at most 65536 bytes"), (b"\xff", "files of text")],
)
def test_a_profile_is_read_within_bounds(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(data)

    with pytest.raises(InvalidArgument, match=message):
        profile_text(file)
    file.write_bytes(b"{}" + b" " * 65_534)
    assert len(profile_text(file)) == 65_536


def test_a_variant_comes_back_from_its_document_as_it_was() -> None:
    assert from_json(type(LIGHT), json.loads(json.dumps(to_json(LIGHT)))) == LIGHT


def test_the_list_says_where_costs_are_known() -> None:
    console = Console(width=200, record=True)
    console.print(models_table(RegisteredModels((LIGHT, variant("middle")))))

    light, middle = console.export_text().splitlines()[1:]
    assert "gpu, any device" in light and "0.0" in light
    assert "not known" in middle


def test_directory_without_checkpoint_names_fault(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="model_index"):
        describe("x", tmp_path, ())


def test_model_without_name_is_rejected() -> None:
    done = CliRunner().invoke(add, ["", "tiny-light"])

    assert isinstance(done.exception, InvalidArgument)
    assert str(done.exception) == "name: must not be empty"


def test_a_model_is_described_without_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "services.unet_worker.describe"]

    done = subprocess.run([*command, "--model", str(find_model("tiny-light").path)], capture_output=True, text=True)

    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert (done.returncode, json.loads(done.stdout)["name"]) == (0, "tiny-light")
    assert imported & {"torch", "services.unet_worker.settings"} == {"services.unet_worker.settings"}
