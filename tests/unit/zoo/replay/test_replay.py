"""Record images that the serving engine generated and timed."""

from pathlib import Path

import pytest

from lab.emulation.recording import read_profile, read_recorded_image, read_recording, write_recording
from zoo.registry import WEIGHTS, entry_of
from zoo.replay import record as recorder
from zoo.replay.__main__ import RECORDED


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCHES": (1, 2), "LOADS": 1, "REPEATS": 1, "SCORES": 2}.items():
        monkeypatch.setattr(recorder, name, value)
    entry_of = recorder.entry_of
    monkeypatch.setattr(recorder, "entry_of", lambda *names: entry_of(*names) | {"default_steps": 2})


@pytest.mark.usefixtures("briefly")
def test_recording_round_trips(exported: Path, tmp_path: Path) -> None:
    recording, files = recorder.record(exported, tmp_path, prompt_count=2, kept=1)
    write_recording(tmp_path, recording, files)

    found = read_recording(tmp_path)

    assert found == recording
    for model in found.models:
        assert read_recorded_image(tmp_path, model.pictures[0]).startswith(b"\x89PNG")
        assert model.pictures[1].file is None
        assert model.pictures[1].confidence is not None
        profile = read_profile(tmp_path, model)
        assert [batch.batch_size for batch in profile.batches] == [1, 2]
        assert all(len(batch.steps) == 2 for batch in profile.batches)
        assert profile.size(model.width_px, model.height_px) is not None
    assert found.discriminator is not None
    assert [score.batch_size for score in found.discriminator.score] == [1, 2]
    assert found.discriminator.digest == recorder.entry_of("tiny-discriminator", exported)["digest"]


def test_the_recording_of_the_repository_is_of_its_weights() -> None:
    recording = read_recording(RECORDED)

    recorded = {model.name: model.digest for model in (*recording.models, recording.discriminator)}

    assert recorded == {name: entry_of(name, WEIGHTS)["digest"] for name in (*recorder.PAIR, recorder.DISCRIMINATOR)}
