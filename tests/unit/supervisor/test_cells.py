from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.supervisor.cells import FILE, cell_lists, remembered_counts


def test_remembered_counts_are_the_present_one_and_earlier_ones(tmp_path: Path) -> None:
    assert [remembered_counts(tmp_path, count) for count in (1, 4, 2, 2, 4, 1)] == [
        (1,),
        (4,),
        (2, 4),
        (2, 4),
        (4, 2),
        (1, 4, 2),
    ]
    assert cell_lists((2, 1)) == ("frontdoor+frontdoor-1", "frontdoor")


def test_remembered_counts_of_a_suite_with_a_journal_begin_with_one(tmp_path: Path) -> None:
    (tmp_path / "frontdoor.sqlite").touch()
    assert remembered_counts(tmp_path, 2) == (2, 1)


@pytest.mark.parametrize("content", ["", "{}", "[0]", "[65]", '["2"]', "[true]"])
def test_remembered_counts_reject_an_invalid_file_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(InvalidArgument, match=r"cells\.json: must be a list of counts of 1 to 64"):
        remembered_counts(tmp_path, 2)
    assert (tmp_path / FILE).read_text() == content
