"""Test the figures of `load_speed`, and the store that it loads from."""

import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from benchmarks.load_speed import TITLES, figures_of
from benchmarks.suites.slow_objects import BYTES_PER_S, DELAY_S, slow_objects


@pytest.mark.parametrize(("ours_s", "reached"), [(2.9, 6), (3.1, 1), (10.1, 0)])
def test_load_speed_holds_the_papers_savings(ours_s: float, reached: int) -> None:
    figures = figures_of({row: [(ours_s, 10.0)] * 5 for row in TITLES})

    assert sum(figure.ok for figure in figures if figure.target.limit is not None) == reached
    assert [str(figure.target) for figure in figures[:6]] == ["<= 0.3"] * 5 + ["<= 1"]


def test_slow_objects_delays_throttles_and_sends_ranges(tmp_path: Path) -> None:
    data = bytes(range(256)) * 24_000
    (tmp_path / "unet").write_bytes(data)
    with slow_objects(tmp_path) as address:
        began_s = time.monotonic()
        with urlopen(f"{address}/bucket/unet") as answer:
            assert answer.read() == data
        assert time.monotonic() - began_s >= DELAY_S + len(data) / BYTES_PER_S

        with urlopen(Request(f"{address}/bucket/unet", headers={"Range": "bytes=5-9"})) as answer:
            assert (answer.read(), answer.headers["Content-Range"]) == (data[5:10], f"bytes 5-9/{len(data)}")
        with pytest.raises(HTTPError):
            urlopen(f"{address}/bucket/none")
