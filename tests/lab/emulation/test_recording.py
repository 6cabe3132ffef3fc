"""Test recordings: written in few bytes, and checked when read."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.emulation.recording import (
    LIMIT_BYTES,
    Prompt,
    RecordedDiscriminator,
    RecordedImage,
    RecordedModel,
    Recording,
    ScoreCost,
    quantile_of,
    read_profile,
    read_recorded_image,
    read_recording,
    write_recording,
)
from pentimento.domain.errors import FailedPrecondition, NotFound
from pentimento.profiles.costs import Cost, ModelProfile, costs_to_json
from tests.support.refusals import wrong_refusals

PNG_SHA256 = "8f8cbb7dcf46e0bc7d53265749a6c17d116093a6ba95e442764060c76fd4a86c"  # the digest of b"png"
PROFILE = ModelProfile("tiny-light", "sha256:00", "cpu", "float32", 1, "off", 12, (), ())
FILES = {"tiny-light-000.png": b"png", "tiny-light.profile.json": costs_to_json(PROFILE).encode()}


def a_recording(**changes: Any) -> Recording:
    pictures = (RecordedImage(0.7, 1.0, 0.25, "tiny-light-000.png", PNG_SHA256), RecordedImage(-0.1, None, None))
    cost = Cost(0.5, 0.25, 3)
    files = ("tiny-light.profile.json", cost, pictures)
    model = RecordedModel("tiny-light", "sha256:00", "stable_diffusion", 64, 64, 12, 2.5, *files)
    recording = Recording(
        format="pentimento-recording",
        version=2,
        recorded_at="2026-01-01T00:00:00Z",
        commit="0" * 40,
        machine={"cores": 2},
        device="cpu",
        threads=1,
        prompts=(Prompt("a red circle", 0), Prompt("a blue star", 1)),
        models=(model,),
        discriminator=RecordedDiscriminator(
            "tiny-discriminator", "sha256:01", (ScoreCost(1, cost), ScoreCost(4, cost))
        ),
    )
    return replace(recording, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_recording(tmp_path, a_recording(), FILES)
    return tmp_path


def test_recording_is_read_as_written(folder: Path) -> None:
    assert read_recording(folder) == a_recording()


def test_recorded_image_is_read_and_checked(folder: Path) -> None:
    first, second = read_recording(folder).model("tiny-light").pictures

    assert read_recorded_image(folder, first) == b"png"
    with pytest.raises(NotFound, match="only the qualities"):
        read_recorded_image(folder, second)
    (folder / "tiny-light-000.png").write_bytes(b"another")
    with pytest.raises(FailedPrecondition, match=r"tiny-light-000\.png: not the picture"):
        read_recorded_image(folder, first)


def test_unknown_model_lists_the_recorded_ones() -> None:
    with pytest.raises(NotFound, match="'tiny-flow': recorded are tiny-light"):
        a_recording().model("tiny-flow")


def test_the_profile_of_a_recorded_model_is_read(folder: Path) -> None:
    assert read_profile(folder, a_recording().model("tiny-light")) == PROFILE


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "not there"),
        (lambda path: path.write_text("{"), "must be JSON"),
        (lambda path: path.write_bytes(b"\xff"), "decode"),
        (lambda path: path.write_text(costs_to_json(replace(PROFILE, model_digest="sha256:02"))), "of sha256:02"),
    ],
)
def test_wrong_or_missing_profile_names_its_file(spoil: Callable[[Path], object], message: str, folder: Path) -> None:
    path = folder / "tiny-light.profile.json"
    spoil(path)

    with pytest.raises((NotFound, FailedPrecondition), match=message) as raised:
        read_profile(folder, a_recording().model("tiny-light"))

    assert str(path) in raised.value.message


def test_recorded_prompt_returns_its_image_for_every_seed() -> None:
    assert [a_recording().index_of("a blue star", seed) for seed in range(3)] == [1, 1, 1]


def test_other_prompts_spread_over_recorded_ones() -> None:
    prompts = tuple(Prompt(f"picture {number}", number) for number in range(4))
    found = [replace(a_recording(), prompts=prompts).index_of("a green moon", seed) for seed in range(400)]

    assert found == [replace(a_recording(), prompts=prompts).index_of("a green moon", seed) for seed in range(400)]
    assert all(60 <= found.count(index) <= 140 for index in range(4))


@settings(deadline=None)
@given(st.text(), st.integers(0, 2**64 - 1))
def test_a_quantile_is_at_least_0_and_below_1(prompt: str, seed: int) -> None:
    assert 0.0 <= quantile_of(prompt, seed) < 1.0


def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def apply(document: Any) -> None:
        *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in parents:
            document = document[key]
        document[last] = value

    return apply


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        del document["models"][0][name]

    return apply


WRONG: list[tuple[Callable[[Any], None], str]] = [
    (change("format", "other"), "format: expected 'pentimento-recording'"),
    (change("version", 1), "version: expected 2, not 1"),
    (change("colour", 2), "colour: is not known"),
    (change("threads", 0), "threads: must be at least 1 and finite, got 0"),
    (change("threads", True), "threads: must be a whole number"),
    (change("machine", []), "machine: must be an object"),
    (change("prompts", {}), "prompts: must be a list"),
    (change("prompts.1.text", 7), r"prompts\[1\]\.text: must be a text, got '7'"),
    (change("models.0.guidance_scale", "2"), r"models\[0\]\.guidance_scale: must be a number"),
    (drop("load"), r"models\[0\]\.load: is missing"),
    (change("models.0.load.mean_s", -1.0), r"models\[0\]\.load\.mean_s: must be at least 0"),
    (change("models.0.load.mean_s", float("nan")), r"models\[0\]\.load\.mean_s: must be a number"),
    (change("models.0.profile", "../x.profile.json"), r"models\[0\]\.profile: expected a name"),
    (change("discriminator.score.0.batch_size", 4), r"discriminator\.score: expected ascending batches from 1"),
    (change("discriminator.score.0.cost.sample_count", 0), r"score\[0\]\.cost\.sample_count: must be at least 1"),
    (
        change("models.0.pictures.0.confidence", 1.5),
        r"pictures\[0\]\.confidence: must be .* at most 1, got 1\.5",
    ),
    (change("models.0.pictures.0.file", "../x.png"), r"pictures\[0\]\.file: expected a name"),
    (change("models.0.pictures.0.sha256", None), r"pictures\[0\]\.sha256: missing"),
    (change("models.0.pictures", []), r"models\[0\]\.pictures: 0 of 2 prompts"),
    (change("discriminator", []), "discriminator: must be an object"),
]


def test_a_wrong_or_missing_field_names_itself(folder: Path) -> None:
    path = folder / "recording.json"
    sound = path.read_text()

    def read(spoil: Callable[[Any], None]) -> None:
        document = json.loads(sound)
        spoil(document)
        path.write_text(json.dumps(document))
        read_recording(folder)

    rows = [(spoil, f"{re.escape(str(path))}.*{message}") for spoil, message in WRONG]

    assert wrong_refusals(FailedPrecondition, read, rows) == []


def test_a_document_that_is_none_names_its_file(folder: Path) -> None:
    for content in (b"", b"{", b"[]", b"\xff"):
        (folder / "recording.json").write_bytes(content)

        with pytest.raises(FailedPrecondition, match=r"recording\.json: "):
            read_recording(folder)


def test_folder_without_document_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"recording\.json: not there"):
        read_recording(tmp_path)


def test_too_large_recording_leaves_the_earlier_one(folder: Path) -> None:
    with pytest.raises(FailedPrecondition, match="keep fewer pictures"):
        write_recording(folder, a_recording(commit="other"), {"tiny-light-001.png": bytes(LIMIT_BYTES)})

    assert read_recording(folder) == a_recording()


def test_new_recording_replaces_an_earlier_one(folder: Path) -> None:
    write_recording(folder, a_recording(), {"tiny-light-001.png": b"png"})

    assert sorted(path.name for path in folder.iterdir()) == ["recording.json", "tiny-light-001.png"]


def test_a_recording_is_read_without_torch() -> None:
    code = "import sys; import lab.emulation.recording; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
