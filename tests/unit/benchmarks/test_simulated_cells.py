"""Figures of simulated cells: shares of tenants, rates, and the results of a small run."""

import pytest

from benchmarks.suites.simulated_cells import fairness, index_of_all, moved_between, moves, rate_share, throughput


def test_moved_tenants_have_another_cell() -> None:
    before = {"x": "a", "y": "b", "z": "b"}

    assert moved_between(before, {"x": "c", "y": "b", "z": "c"}) == ["x", "z"]
    assert moved_between(before, before) == []


def test_index_is_of_all_windows_together() -> None:
    # Each window has all images of one cell; over both windows the cells have the same number.
    assert index_of_all([(4, 0), (0, 4)]) == 1.0
    assert index_of_all([(4, 0), (4, 0)]) == 0.5


def test_rate_share_is_of_full_batches_on_all_devices() -> None:
    """A batch of 2 takes 3.6 s: in windows of 7.2 s 10 devices give 40 images."""
    assert rate_share([(20, 20), (10, 10)], 10, 3.6, 7.2) == pytest.approx(0.75)


def test_few_cells_meet_their_theory() -> None:
    found = {figure.name: figure.value for figure in (*throughput(2, 400, 0.5), *moves(4, 30))}

    assert found["requests/s of 2 cells, 400 devices ÷ of 1 cell"] == pytest.approx(2.0, rel=0.05)
    assert found["requests/s of 1 cell"] == pytest.approx(1 / 0.003, rel=0.05)
    # 40 tenants, of 4 and then 5 cells.
    assert found["tenants that move to a cell added to 4"] == pytest.approx(0.2, abs=0.1)
    assert found["tenants that move when 1 of 5 leaves"] == pytest.approx(0.2, abs=0.1)
    assert found["tenants that move from or to another cell"] == 0
    assert found["requests lost while tenants move"] == 0


def test_few_cells_share_a_full_fleet() -> None:
    index, _, share = (figure.value for figure in fairness(4, 40, 4))

    assert index is not None and index >= 0.95
    assert share == pytest.approx(1.0, abs=0.15)
