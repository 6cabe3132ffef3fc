"""`pentimento generate` for many prompts: requests, saved files and reports."""

import asyncio
import errno
import json
import os
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from pentimento.cli import cli
from pentimento.cli.generate import all_prompts, summary
from pentimento.cli.many_images import Bars, Outcomes, Wish, generate_all, tell
from pentimento.domain.errors import Internal, InvalidArgument, PentimentoError, ResourceExhausted
from pentimento.domain.image_request import (
    Accepted,
    Completed,
    GenerateEvent,
    ImageFailed,
    ImageFormat,
    ImageRequest,
    Progress,
)
from pentimento.sdk import AsyncClient, GeneratedImage
from tests.support.images import a_png
from tests.support.values import a_provenance, a_spec


def completed(index: int, seed: int, colour: str = "red") -> Completed:
    provenance = a_provenance(request_id="r", spec=a_spec(prompt="a circle", seed=seed))
    return Completed("r", a_png(16, 8, colour), ImageFormat.PNG, 16, 8, provenance, index)


class ScriptedClient:
    """Stream the scripted events of each prompt; the last one may be an error."""

    def __init__(self, scripts: dict[str, list[GenerateEvent | PentimentoError]]) -> None:
        self.scripts = scripts
        self.keys: list[str] = []

    async def stream(self, request: ImageRequest, *, idempotency_key: str) -> AsyncGenerator[GenerateEvent, None]:
        self.keys.append(idempotency_key)
        for event in self.scripts[request.prompt]:
            if isinstance(event, PentimentoError):
                raise event
            yield event


async def generated(folder: Path, wishes: list[Wish], **scripts: list[GenerateEvent | PentimentoError]) -> Outcomes:
    outcomes = Outcomes(folder)
    client = cast(AsyncClient, ScriptedClient(scripts))
    with Bars(len(wishes), quiet=True) as bars:
        await generate_all(client, wishes, 2, outcomes, bars)
    return outcomes


TWO_OF_A = Wish(1, ImageRequest("a", image_count=2))
B = Wish(2, ImageRequest("b"))
FULL = ResourceExhausted("QUEUE_FULL", "the queue is full")
BROKEN = ImageFailed("p2-x-1", 1, Internal("BROKEN", "the decoder broke"))


async def test_data_of_saved_images_is_not_kept_in_memory(tmp_path: Path) -> None:
    outcomes = await generated(tmp_path, [B], b=[completed(0, 7)])

    assert outcomes.images[2, 0].data == b"" and outcomes.files[2, 0].stat().st_size > len(a_png(16, 8, "red"))


def test_an_image_that_many_start_from_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "start.png").write_bytes(a_png(16, 8, "blue"))
    seen: list[bytes] = []

    async def hear(client: object, wishes: list[Wish], *_: object) -> None:
        seen.extend(wish.request.init_image.image for wish in wishes if wish.request.init_image is not None)

    monkeypatch.setattr("pentimento.cli.generate.generate_all", hear)
    arguments = ["generate", "a", "b", "--address", "unix:/none", "--output-dir", str(tmp_path)]
    done = CliRunner().invoke(cli, [*arguments, "--init-image", str(tmp_path / "start.png")])

    assert done.exit_code == 0, done.output
    assert seen[0] is seen[1]


class OneImage:
    """Answer any request with one image, and record its prompt."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def stream(self, request: ImageRequest, **_: object) -> Generator[GenerateEvent, None, None]:
        self.prompts.append(request.prompt)
        yield completed(0, 7)


@pytest.fixture
def one_image(monkeypatch: pytest.MonkeyPatch) -> OneImage:
    client = OneImage()
    monkeypatch.setattr("pentimento.cli.generate.frontdoor_client", lambda options: nullcontext(client))
    return client


def test_single_image_goes_into_output_folder(one_image: OneImage, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["generate", "a", "--output-dir", str(tmp_path / "new")])

    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["image-7.png"]


def test_a_mark_of_encoding_is_no_part_of_the_first_prompt(one_image: OneImage, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_bytes("\ufeffa red circle\n".encode())

    files = ("--prompts-file", str(tmp_path / "prompts.txt"), "--output", str(tmp_path / "a.png"))
    CliRunner().invoke(cli, ["generate", *files])

    assert one_image.prompts == ["a red circle"]


@pytest.mark.parametrize("output", ["", "."])
def test_folder_as_output_file_generates_nothing(one_image: OneImage, output: str) -> None:
    done = CliRunner().invoke(cli, ["generate", "a", "--output", output])

    assert done.exit_code != 0
    assert one_image.prompts == []


def test_saved_images_are_reported_when_disk_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client, save = ScriptedClient({"a": [completed(0, 7)], "b": [completed(0, 8)]}), GeneratedImage.save

    def save_first(picture: GeneratedImage, path: Path) -> Path:
        if path.name.startswith("002"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(picture, path)

    monkeypatch.setattr(GeneratedImage, "save", save_first)
    monkeypatch.setattr("pentimento.cli.generate.ask_frontdoor", lambda options, ask: asyncio.run(ask(client)))

    done = CliRunner().invoke(cli, ["generate", "a", "b", "--parallel", "1", "--output-dir", str(tmp_path), "--json"])

    assert isinstance(done.exception, OSError)
    assert json.loads(done.stdout)["file"] == str(tmp_path / "001-0-7.png")


async def test_images_are_saved_by_prompt_index_and_seed(tmp_path: Path) -> None:
    a = [Accepted("p2-x"), Progress(1, 2, image_index=1), completed(1, 8), completed(0, 7)]

    outcomes = await generated(tmp_path, [TWO_OF_A, B], a=a, b=[completed(0, 5)])

    assert sorted(path.name for path in tmp_path.iterdir()) == ["001-0-7.png", "001-1-8.png", "002-0-5.png"]
    seeds = {place: picture.provenance.spec.seed for place, picture in outcomes.images.items()}
    assert seeds == {(1, 0): 7, (1, 1): 8, (2, 0): 5}


async def test_failed_image_is_reported_and_others_continue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = await generated(tmp_path, [TWO_OF_A, B], a=[completed(0, 7), BROKEN], b=[FULL])

    tell([TWO_OF_A, B], outcomes, summary, as_json=False)

    told = capsys.readouterr()
    assert "001-0-7.png  16×8, tiny, seed 7, 10 steps" in told.out
    assert told.err.splitlines() == [
        "prompt 1, image 1: the decoder broke",
        "prompt 2, image 0: the queue is full",
    ]


async def test_each_image_is_a_line_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = await generated(tmp_path, [TWO_OF_A, B], a=[completed(0, 7), BROKEN], b=[FULL])

    tell([TWO_OF_A, B], outcomes, summary, as_json=True)

    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["prompt_number"], first["image_index"], first["spec"]["seed"]) == (1, 0, 7)
    assert Path(first["file"]).exists()
    assert second == {
        "prompt_number": 1,
        "image_index": 1,
        "error": {"reason": "BROKEN", "message": "the decoder broke"},
    }
    assert third["error"]["reason"] == "QUEUE_FULL"


async def test_unwritable_folder_raises_error_of_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await generated(tmp_path / "none", [TWO_OF_A, B], a=[completed(0, 7)], b=[completed(0, 5)])


def test_prompts_come_from_command_line_then_file() -> None:
    assert all_prompts(("a",), ["  b  \n", "\n", "c"]) == ("a", "b", "c")


def test_prompt_that_is_no_text_is_named_by_number() -> None:
    with pytest.raises(InvalidArgument, match=r"^prompt 3: must be UTF-8 text"):
        all_prompts(("a",), ["b\n", "\udcff\n"])


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ([], "give a prompt"),
        (["--prompts-file", "-"], "give a prompt"),
        (["a", "b", "-o", "x.png"], "--output is for one image"),
        (["a", "--count", "2", "-o", "x.png"], "--output is for one image"),
        (["a", "b", "--preview", "3"], "--preview is for one image"),
        (["a", "b", "--mask", __file__], "--mask needs --init-image"),
    ],
)
def test_conflicting_options_are_rejected(arguments: list[str], wrong: str) -> None:
    done = CliRunner().invoke(cli, ["generate", "--address", "unix:/nobody", *arguments])

    assert done.exit_code == 2
    assert wrong in re.sub(r"\s+", " ", done.output)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_the_command(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])

    assert done.exit_code == 0
    assert "_PENTIMENTO_COMPLETE" in done.output


def test_completion_knows_subcommands() -> None:
    environment = {"_PENTIMENTO_COMPLETE": "bash_complete", "COMP_WORDS": "pentimento gen", "COMP_CWORD": "1"}

    done = CliRunner().invoke(cli, prog_name="pentimento", env=environment)

    assert done.output.splitlines() == ["plain,generate"]
