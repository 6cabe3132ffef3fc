import pytest

from benchmarks.joint import LOADS, LoadRun, search


@pytest.mark.parametrize("most", [0, 1, 7, 40, 80])
@pytest.mark.parametrize("guess", [0, 8, 60, 89])
def test_a_search_ends_at_the_largest_load_that_is_carried(most: int, guess: int) -> None:
    def run(peak: float) -> LoadRun:
        return LoadRun("system", 1, peak, 0.0 if peak <= LOADS[most] else 1.0, 1.0)

    runs = search(run, guess)

    assert max(one.peak_per_s for one in runs if one.carried) == LOADS[most]
    assert min(one.peak_per_s for one in runs if not one.carried) == LOADS[most + 1]
    assert len(runs) == len({one.peak_per_s for one in runs}) <= 16


@pytest.mark.parametrize(("violations", "quality", "carried"), [(0.05, 0.95, True), (0.051, 1.0, False), (0, 0.949, 0)])
def test_a_load_is_carried_where_slo_and_quality_are_kept(violations: float, quality: float, carried: bool) -> None:
    assert LoadRun("system", 1, 1.0, violations, quality).carried == carried
