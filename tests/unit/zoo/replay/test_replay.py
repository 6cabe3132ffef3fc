"""Recordings: written small, read only when they are right, and made by what a worker's engine calls."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pentimento.diffusion.painting import NoiseStart, PaintingRequest, denoise_step, prepare
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.errors import FailedPrecondition, NotFound
from zoo.replay import record as recorder
from zoo.replay.recording import (
    LIMIT_BYTES,
    Model,
    Picture,
    Profile,
    Prompt,
    Recording,
    make_timing,
    read_picture,
    read_recording,
    write_recording,
)

PNG_SHA256 = "8f8cbb7dcf46e0bc7d53265749a6c17d116093a6ba95e442764060c76fd4a86c"  # of b"png"


def a_recording(**changes: Any) -> Recording:
    once = make_timing(1, [0.5, 0.25])
    profile = Profile(once, once, (make_timing(1, [0.01, 0.03]), make_timing(4, [0.05])), once, once)
    pictures = (Picture(0.7, 1.0, 0.25, "tiny-light-000.png", PNG_SHA256), Picture(-0.1, None, None))
    model = Model("tiny-light", "sha256:00", "stable_diffusion", 64, 64, 12, 2.5, profile, pictures)
    recording = Recording(
        format="pentimento-recording",
        version=1,
        recorded_at="2026-01-01T00:00:00Z",
        commit="0" * 40,
        machine={"cores": 2},
        device="cpu",
        threads=1,
        prompts=(Prompt("a red circle", 0), Prompt("a blue star", 1)),
        models=(model,),
    )
    return replace(recording, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_recording(tmp_path, a_recording(), {"tiny-light-000.png": b"png"})
    return tmp_path


def test_a_recording_is_read_as_it_was_written(folder: Path) -> None:
    assert read_recording(folder) == a_recording()


def test_a_recorded_picture_is_read_and_checked(folder: Path) -> None:
    first, second = read_recording(folder).model("tiny-light").pictures

    assert read_picture(folder, first) == b"png"
    with pytest.raises(NotFound, match="only the qualities"):
        read_picture(folder, second)
    (folder / "tiny-light-000.png").write_bytes(b"another")
    with pytest.raises(FailedPrecondition, match=r"tiny-light-000\.png: not the picture"):
        read_picture(folder, first)


def test_a_model_that_was_not_recorded_names_those_that_were() -> None:
    with pytest.raises(NotFound, match="'tiny-flow': recorded are tiny-light"):
        a_recording().model("tiny-flow")


def test_a_profile_tells_the_time_of_a_batch() -> None:
    profile = a_recording().model("tiny-light").profile

    assert [profile.step_s(batch) for batch in (1, 2, 4)] == pytest.approx([0.02, 0.03, 0.05])
    assert profile.pictures_s(steps=10, batch=4) == pytest.approx(4 * 3 * 0.375 + 10 * 0.05)
    with pytest.raises(ValueError, match="batch 8: recorded are 1, 4"):
        profile.step_s(8)


def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def apply(document: Any) -> None:
        *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in parents:
            document = document[key]
        document[last] = value

    return apply


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        del document["models"][0]["profile"][name]

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change("format", "other"), "format: expected 'pentimento-recording'"),
        (change("version", 2), "version: expected 1, not 2"),
        (change("colour", 2), "colour: unknown field"),
        (change("threads", 0), "threads: expected 1 to inf, not 0"),
        (change("threads", True), "threads: expected a whole number"),
        (change("machine", []), "machine: expected an object"),
        (change("prompts", {}), "prompts: expected a list"),
        (change("prompts.1.text", 7), r"prompts\[1\]\.text: expected a text, not '7'"),
        (change("models.0.guidance_scale", "2"), r"models\[0\]\.guidance_scale: expected a finite number"),
        (drop("decode"), r"models\[0\]\.profile\.decode: missing"),
        (change("models.0.profile.load.samples_s.1", -1.0), r"profile\.load\.samples_s\[1\]: expected 0 to inf"),
        (change("models.0.profile.load.mean_s", float("nan")), r"profile\.load\.mean_s: expected a finite number"),
        (change("models.0.profile.step.0.batch", 4), r"models\[0\]\.profile\.step: expected ascending batches from 1"),
        (change("models.0.pictures.0.confidence", 1.5), r"pictures\[0\]\.confidence: expected 0 to 1, not 1\.5"),
        (change("models.0.pictures.0.file", "../x.png"), r"pictures\[0\]\.file: expected a name"),
        (change("models.0.pictures.0.sha256", None), r"pictures\[0\]\.sha256: missing"),
        (change("models.0.pictures", []), r"models\[0\]\.pictures: 0 of 2 prompts"),
        (change("discriminator", []), "discriminator: expected an object"),
    ],
)
def test_a_wrong_or_missing_field_names_itself(spoil: Callable[[Any], None], message: str, folder: Path) -> None:
    path = folder / "recording.json"
    document = json.loads(path.read_text())
    spoil(document)
    path.write_text(json.dumps(document))

    with pytest.raises(FailedPrecondition, match=message) as raised:
        read_recording(folder)

    assert str(path) in raised.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_document_that_is_none_names_its_file(content: bytes, folder: Path) -> None:
    (folder / "recording.json").write_bytes(content)

    with pytest.raises(FailedPrecondition, match=r"recording\.json: "):
        read_recording(folder)


def test_a_folder_without_a_document_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"recording\.json: not there"):
        read_recording(tmp_path)


def test_a_recording_that_is_too_large_leaves_the_earlier_one(folder: Path) -> None:
    with pytest.raises(FailedPrecondition, match="keep fewer pictures"):
        write_recording(folder, a_recording(commit="other"), {"tiny-light-001.png": bytes(LIMIT_BYTES)})

    assert read_recording(folder) == a_recording()


def test_a_new_recording_takes_the_place_of_an_earlier_one(folder: Path) -> None:
    write_recording(folder, a_recording(), {"tiny-light-001.png": b"png"})

    assert sorted(path.name for path in folder.iterdir()) == ["recording.json", "tiny-light-001.png"]


def test_a_recording_is_read_without_torch() -> None:
    code = "import sys; import zoo.replay.recording; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCHES": (1, 2), "LOADS": 1, "WARM_UP": 0, "SAMPLES": 2}.items():
        monkeypatch.setattr(recorder, name, value)
    entry_of = recorder.entry_of
    monkeypatch.setattr(recorder, "entry_of", lambda *names: entry_of(*names) | {"default_steps": 2})


@pytest.mark.usefixtures("briefly")
def test_what_is_recorded_can_be_read_again(exported: Path, tmp_path: Path) -> None:
    recording, pngs = recorder.record(exported, tmp_path, prompt_count=2, kept=1)
    write_recording(tmp_path, recording, pngs)

    found = read_recording(tmp_path)

    assert found == recording
    for model in found.models:
        assert read_picture(tmp_path, model.pictures[0]).startswith(b"\x89PNG")
        assert model.pictures[1].file is None
        assert model.pictures[1].confidence is not None
        assert [timing.batch for timing in model.profile.step] == [1, 2]
        assert all(len(timing.samples_s) == 2 for timing in model.profile.step)
    assert found.discriminator is not None
    assert found.discriminator.digest == recorder.entry_of("tiny-discriminator", exported)["digest"]


@pytest.mark.usefixtures("briefly")
@torch.inference_mode()
def test_pictures_that_step_together_are_those_of_the_engine(exported: Path) -> None:
    model = recorder.load_model(exported / "tiny-light", torch.device("cpu"), torch.float32)
    requests = [
        PaintingRequest(recorder._spec(model, text, seed, 2, 2.5), NoiseStart())
        for seed, text in enumerate(("a red circle", "a blue star"))
    ]
    together, alone = ([prepare(model, PromptMemo(model, 4), request) for request in requests] for _ in range(2))

    for _ in range(2):
        recorder.step_together(model, together)
        for painting in alone:
            denoise_step(model, painting)

    for one, other in zip(together, alone, strict=True):
        assert one.done
        assert torch.allclose(one.state.latent, other.state.latent, atol=1e-4)
