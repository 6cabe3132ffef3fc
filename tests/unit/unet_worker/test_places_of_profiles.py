"""What measures for minutes says first where its files have no place."""

from pathlib import Path
from typing import Any

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.files.folders import make_folder
from pentimento.supervisor.models import find_model
from services.unet_worker import handover_profile, lora_bound, profile, selector_profile, thinning_profile

MODEL = str(find_model("tiny-light").path)
# Of a command, what it needs beside a model and prompts.
STUDIES = {
    handover_profile: ("--light-model", MODEL),
    selector_profile: (),
    thinning_profile: (),
}


@pytest.mark.parametrize("command", [profile, lora_bound])
async def test_a_file_in_a_folder_that_is_not_there(command: Any, tmp_path: Path) -> None:
    needed = ("--loras", str(tmp_path), "--prompts", __file__) if command is lora_bound else ()

    with pytest.raises(InvalidArgument, match="out: must be in a folder that exists"):
        await command.main(["--model", MODEL, *needed, "--out", str(tmp_path / "nowhere" / "found.json")])


@pytest.mark.parametrize("command", STUDIES)
async def test_a_folder_that_cannot_be_made(command: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("a circle\n")
    needed = ("--prompts", str(prompts), "--embedder-address", "unix:/nobody", *STUDIES[command])

    with pytest.raises(InvalidArgument, match="out: must be a folder"):
        await command.main(["--model", MODEL, *needed, "--out", str(prompts)])


def test_a_folder_is_made_with_those_that_it_is_in(tmp_path: Path) -> None:
    make_folder("out", tmp_path / "a" / "b")
    make_folder("out", tmp_path / "a" / "b")

    assert (tmp_path / "a" / "b").is_dir()
