"""Test when a new worker counts as fast as an established one, and the figures of `scale_up`."""

import pytest

from benchmarks.scale_up import AHEAD, PEER, STORE, Seconds, figures_of, matched_at

OLD = [1.0] * 20


NEW: list[tuple[list[float], int | None]] = [
    ([1.0] * 8, 0),
    ([1.0] * 7, None),
    ([3.0, 3.0, *[1.0] * 8], 1),
    ([3.1, 3.0, *[1.0] * 9], 1),
    ([3.1] * 3 + [1.0] * 8, 3),
    ([1.25] * 8, 0),
    ([1.26] * 20, None),
]


def test_new_worker_is_as_fast_once_eight_requests_take_little_longer() -> None:
    for new, matched in NEW:
        assert matched_at(new, OLD) == matched, new


def test_figures_hold_the_papers_saving() -> None:
    def seconds(from_start: float, from_serving: float, peer_share: float) -> list[Seconds]:
        return [Seconds(from_start, from_serving, 1.0, peer_share)] * 3

    found = {STORE: seconds(20.0, 10.0, 0.0), PEER: seconds(15.0, 8.0, 1.0), AHEAD: seconds(8.0, 3.5, 0.98)}

    figures = {figure.name: figure for figure in figures_of(found)}

    with_target = {name: figure.ok for name, figure in figures.items() if figure.target.limit is not None}
    assert with_target == {
        "from its start until as fast: saved with prefetch": False,
        "from its serving until as fast: saved with prefetch": True,
        "bytes that the peer sent, from a peer": True,
        "bytes that the peer sent, with prefetch": False,
    }
    assert figures["from its start until as fast: saved with prefetch"].value == pytest.approx(0.6)
    assert figures["from its serving until as fast: saved from a peer"].value == pytest.approx(0.2)
