"""Every test belongs to one tier, and a run of a tier loads only files with its tests."""

import pytest

from tests.tiers import ROOT, SECOND, is_second, may_hold, rank


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tests/unit/sdk/test_surface.py", False),
        ("tests/unit/zoo/train/test_parts.py", True),
        ("tests/unit/zoology/test_parts.py", False),
        ("tests/contract/stores/test_presigned.py", True),
        ("tests/e2e", True),
        ("tests", False),
    ],
)
def test_is_second_goes_by_folder_or_file(name: str, expected: bool) -> None:
    assert is_second(name) is expected


def test_second_tier_names_folders_and_files_that_exist() -> None:
    assert [name for name in sorted(SECOND) if not (ROOT / "tests" / name).exists()] == []


def test_may_hold_second_tier_needs_a_mark_in_the_file_or_its_conftest() -> None:
    stores = ROOT / "tests" / "contract" / "stores"

    assert may_hold(stores / "test_journal.py", "second") and may_hold(stores / "test_journal.py", "first")
    assert not may_hold(ROOT / "tests/unit/sdk/test_surface.py", "second")
    assert not may_hold(stores / "test_presigned.py", "first") and may_hold(stores / "test_presigned.py", "second")


def test_rank_deals_suites_first_and_units_last() -> None:
    names = (
        "tests/e2e/test_life.py",
        "tests/e2e/guarded/test_a.py",
        "tests/contract/rpc/test_tls.py",
        "tests/unit/sdk/a.py",
    )

    assert [rank(name) for name in names] == sorted({rank(name) for name in names})
