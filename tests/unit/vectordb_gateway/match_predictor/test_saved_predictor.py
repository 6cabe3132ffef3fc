from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pentimento.policies.match_prediction import SearchOutcome
from pentimento.stores.ledger.cache_records import EncoderBinding, NumberedVector
from services.vectordb_gateway.match_predictor.predictor import MatchPredictor
from services.vectordb_gateway.match_predictor.saved_predictor import UnusableFile, load_predictor, save_predictor

pytest.importorskip("sklearn")

ENCODER = EncoderBinding("sha256:encoder", 64)
ROWS = np.random.default_rng(0).normal(size=(500, 64)).astype(np.float32)
OUTCOMES = (SearchOutcome(0.5, 0.1, 10.0), SearchOutcome(-0.25, 0.0))


def saved(tmp_path: Path) -> tuple[Path, MatchPredictor]:
    predictor = MatchPredictor(ENCODER)
    predictor.add(
        [NumberedVector(number + 1, "a" if number < 400 else "b", row.tobytes()) for number, row in enumerate(ROWS)]
    )
    predictor.retrain(np.arange(1, 501))
    path = tmp_path / "kept" / "predictor.npz"
    save_predictor(path, "cache", predictor, OUTCOMES)
    return path, predictor


def test_what_was_saved_scores_as_before(tmp_path: Path) -> None:
    path, before = saved(tmp_path)

    after, outcomes = load_predictor(path, "cache", ENCODER)

    vectors = [row.tobytes() for row in ROWS[:20] + 0.1]
    assert [after.score_in(["a"], each) for each in vectors] == [before.score_in(["a"], each) for each in vectors]
    assert outcomes == OUTCOMES
    assert (after.last_sequence, after.entry_count) == (500, 500)
    assert not after.is_stale(500)


def test_what_was_saved_learns_on(tmp_path: Path) -> None:
    after, _ = load_predictor(saved(tmp_path)[0], "cache", ENCODER)

    after.add([NumberedVector(501, "a", ROWS[0].tobytes())])

    assert after.entry_count == 501


def test_files_are_for_their_user_alone_and_nothing_is_left_beside(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)

    assert [each.name for each in path.parent.iterdir()] == ["predictor.npz"]
    assert path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("cache_id", "encoder", "what"),
    [
        ("another", ENCODER, "cache id"),
        ("cache", replace(ENCODER, encoder_digest="sha256:other"), "encoder digest"),
        ("cache", replace(ENCODER, dimension_count=32), "dimension count"),
    ],
)
def test_a_file_of_another_cache_or_encoder_is_refused(
    tmp_path: Path, cache_id: str, encoder: EncoderBinding, what: str
) -> None:
    with pytest.raises(UnusableFile, match=what):
        load_predictor(saved(tmp_path)[0], cache_id, encoder)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    rewrite(path, format_version=np.array(2))

    with pytest.raises(UnusableFile, match="format version"):
        load_predictor(path, "cache", ENCODER)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    rewrite(path, cache_id=np.array(["cache"], dtype=object))

    with pytest.raises(UnusableFile):
        load_predictor(path, "cache", ENCODER)


@pytest.mark.parametrize(
    "damage",
    [
        {"0.codes": np.zeros((3, 2), np.uint64)},
        {"0.weights": np.zeros(3, np.float32)},
        {"0.weights": np.full(64, np.nan, np.float32)},
        {"0.offset": np.zeros(2)},
        {"outcomes": np.zeros((2, 7))},
    ],
)
def test_a_file_whose_arrays_do_not_fit_is_refused(tmp_path: Path, damage: dict[str, np.ndarray]) -> None:
    path, _ = saved(tmp_path)
    rewrite(path, **damage)

    with pytest.raises(UnusableFile):
        load_predictor(path, "cache", ENCODER)


@pytest.mark.parametrize("keep", [0, 10, 1000, -100])
def test_a_torn_file_is_refused(tmp_path: Path, keep: int) -> None:
    path, _ = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(UnusableFile):
        load_predictor(path, "cache", ENCODER)


def test_a_flipped_byte_anywhere_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path, before = saved(tmp_path)
    whole = path.read_bytes()
    vector = (ROWS[0] + 0.1).tobytes()
    for place in (*range(0, len(whole), 331), *range(len(whole) - 1200, len(whole), 5)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            after, _ = load_predictor(path, "cache", ENCODER)
        except UnusableFile:
            continue
        assert after.score_in(["a"], vector) == before.score_in(["a"], vector)


def test_a_missing_file_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match="FileNotFoundError"):
        load_predictor(tmp_path / "none.npz", "cache", ENCODER)


def rewrite(path: Path, **changed: np.ndarray) -> None:
    with np.load(path) as arrays:
        kept = {name: arrays[name] for name in arrays.files}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=True, **(kept | changed))
