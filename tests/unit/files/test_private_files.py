"""Who may read what is kept."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.files.private_files import close_to_others, close_tree_to_others, make_private_directory


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


def test_a_new_directory_and_those_above_it_are_this_users_alone(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "a" / "b")

    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b")] == [0o700, 0o700]


def test_a_directory_that_was_open_is_closed_with_all_that_is_in_it(tmp_path: Path) -> None:
    root = tmp_path / "state"
    (root / "logs").mkdir(parents=True, mode=0o755)
    (root / "logs" / "frontdoor.log").write_text("x")
    (root / "run.sh").touch(mode=0o755)

    close_tree_to_others(root)

    assert [mode(root), mode(root / "logs")] == [0o700, 0o700]
    assert [mode(root / "logs" / "frontdoor.log"), mode(root / "run.sh")] == [0o600, 0o700]


def test_a_link_leads_to_nothing_that_is_changed(tmp_path: Path) -> None:
    (tmp_path / "mine").touch(mode=0o644)
    (tmp_path / "link").symlink_to(tmp_path / "mine")

    close_to_others(tmp_path / "link")

    assert mode(tmp_path / "mine") == 0o644


def test_a_place_for_everybody_stays_one(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)

    make_private_directory(tmp_path / "shared")

    assert mode(tmp_path / "shared") == 0o1777
