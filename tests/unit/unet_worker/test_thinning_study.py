"""Which thinnings are tried."""

from services.unet_worker.profiling.steps_study import grid


def test_the_grid_goes_down_from_each_first_step_and_tries_nothing_twice() -> None:
    assert list(grid(50, (0.0, 0.2), (0.5, 0.1))) == [(0, [25, 5]), (10, [20, 4])]
    assert list(grid(4, (0.0, 0.1, 0.5), (0.9, 0.5, 0.4, 0.1))) == [(0, [2, 1]), (2, [1])]
