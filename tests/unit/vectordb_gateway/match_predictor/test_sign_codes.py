import numpy as np
import pytest

from services.vectordb_gateway.match_predictor.sign_codes import (
    SIGN_COUNT,
    CodeSet,
    SignCoder,
    sign_distances,
    similarities,
)


def unit_rows(count: int, size: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def coded(count: int, seed: int = 0) -> CodeSet:
    return CodeSet(SignCoder(64).encode(unit_rows(count, 64, seed)), np.arange(count))


@pytest.mark.parametrize("size", [2, 64, 384, 512, 768, 1000])
def test_codes_tell_the_cosine_of_vectors_of_any_size(size: int) -> None:
    rows = unit_rows(200, size)
    others = rows + 0.7 * unit_rows(200, size, seed=1)
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    coder = SignCoder(size)

    distances = np.diagonal(sign_distances(coder.encode(rows), coder.encode(others)))
    errors = similarities(distances) - (rows * others).sum(axis=1)

    assert coder.encode(rows).nbytes == 200 * SIGN_COUNT // 8
    assert abs(errors.mean()) < 0.02
    # Signs of a plane's vectors are few angles; of many dimensions they are nearly independent.
    assert errors.std() < (0.08 if size == 2 else 0.06)


def test_one_row_is_coded_as_it_is_among_many() -> None:
    rows, coder = unit_rows(300, 384), SignCoder(384)

    together, alone = coder.encode(rows), np.concatenate([coder.encode(row[None]) for row in rows])

    # A sum that is rounded otherwise may turn a sign here and there.
    assert np.bitwise_count(together ^ alone).sum() < 20


def test_two_coders_of_one_size_give_same_codes() -> None:
    rows = unit_rows(3, 96)

    assert (SignCoder(96).encode(rows) == SignCoder(96).encode(rows)).all()


def test_nearest_equals_comparison_with_all() -> None:
    entries, queries = coded(500), SignCoder(64).encode(unit_rows(40, 64, seed=5))

    found = [entries.nearest(query) for query in queries]

    assert found == sign_distances(queries, entries.codes).min(axis=1).tolist()


def test_nothing_is_near_in_an_empty_set() -> None:
    assert coded(0).nearest(coded(1).codes[0]) == SIGN_COUNT


def test_code_set_finds_added_and_kept_codes_only() -> None:
    entries, more = coded(100), coded(30, seed=9)
    for number, code in enumerate(more.codes):
        entries.add(code[None], np.array([100 + number]))

    kept = entries.kept(np.array([3, 120, 999]), until=2000)

    assert [entries.nearest(code) for code in more.codes] == [0] * 30
    assert kept.numbers.tolist() == [3, 120]
    assert entries.kept(np.array([3, 120, 999]), until=127).numbers.tolist() == [3, 120, 128, 129]
    assert kept.nearest(more.codes[20]) == 0
    assert kept.nearest(more.codes[21]) > 0


def test_entries_take_at_most_64_bytes_each() -> None:
    entries = coded(1000)

    for number in range(1000, 3000):
        entries.add(entries.codes[:1], np.array([number]))
        assert entries.size_bytes <= 64 * len(entries)
