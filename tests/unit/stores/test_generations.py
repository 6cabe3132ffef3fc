"""The directory of the embedded index that serves, and the directories that are deleted."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors.generations import Generation, Generations, dimensions_in
from pentimento.stores.vectors.index import Dimensions


@pytest.fixture
def generations(tmp_path: Path) -> Iterator[Generations]:
    generations = Generations(tmp_path, 8)
    generations.hold(1)
    yield generations
    generations.release()


def test_first_generation_serves_until_next_is_published(tmp_path: Path, generations: Generations) -> None:
    assert generations.current() == Generation(tmp_path / "v2-d8", 0)

    built = Generation(generations.following(), 1234)
    generations.publish(built)

    assert generations.current() == built
    assert built.path == tmp_path / "v2-d8.g000002"


def test_following_ones_are_not_there_yet(tmp_path: Path, generations: Generations) -> None:
    (tmp_path / "v2-d8.g000009").mkdir()

    assert generations.following() == tmp_path / "v2-d8.g000010"


def test_unserved_generations_are_deleted(tmp_path: Path, generations: Generations) -> None:
    names = ("v2-d8", "v2-d8.g000002", "v2-d8.g000003", "v2-d8.g000003.unfinished-7")
    for name in (*names, "else"):
        (tmp_path / name).mkdir()
    generations.publish(Generation(tmp_path / "v2-d8.g000002", 5))

    deleted = generations.clean()

    assert deleted == ["v2-d8", "v2-d8.g000003", "v2-d8.g000003.unfinished-7"]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"v2-d8.g000002", "else"}


WRONG_POINTERS: list[str] = [
    "",
    "not JSON",
    "[]",
    "{}",
    '{"directory": "../else", "built_count": 1}',
    '{"directory": "v2-d8", "built_count": "x"}',
]


def test_current_of_wrong_pointer_is_first_generation(tmp_path: Path, generations: Generations) -> None:
    for words in WRONG_POINTERS:
        (tmp_path / "v2-d8.current").write_text(words)

        assert generations.current() == Generation(tmp_path / "v2-d8", 0)


def test_only_one_holds_them_at_a_time(tmp_path: Path, generations: Generations) -> None:
    other = Generations(tmp_path, 8)

    with pytest.raises(StoreUnavailable, match="another process"):
        other.hold(0.0)

    generations.release()
    other.hold(1.0)
    other.release()


def test_delete_leaves_indexes_of_other_dimensions(tmp_path: Path, generations: Generations) -> None:
    for name in ("v2-d8", "v2-d8.g000002", "v2-d8-i4", "v2-d8-i4.g000002", "v2-d80", "else"):
        (tmp_path / name).mkdir()
    generations.publish(Generation(tmp_path / "v2-d8.g000002", 1))
    found = dimensions_in(tmp_path)

    generations.delete()

    assert found == [Dimensions(8, 8), Dimensions(8, 4), Dimensions(80, 80)]
    assert dimensions_in(tmp_path) == [Dimensions(8, 4), Dimensions(80, 80)]
    assert not (tmp_path / "v2-d8.current").exists()
    assert Generations(tmp_path, 8, 4).current().path == tmp_path / "v2-d8-i4"


def test_interrupted_publish_keeps_the_old_pointer(tmp_path: Path, generations: Generations) -> None:
    generations.publish(Generation(tmp_path / "v2-d8.g000002", 1))
    (tmp_path / "v2-d8.current.new").mkdir()  # the new pointer cannot be written

    with pytest.raises(OSError):
        generations.publish(Generation(tmp_path / "v2-d8.g000003", 2))

    told = {"directory": "v2-d8.g000002", "built_count": 1}
    assert json.loads((tmp_path / "v2-d8.current").read_text()) == told
