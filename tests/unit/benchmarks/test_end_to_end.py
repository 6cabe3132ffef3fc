"""Test `end_to_end` with a known log and known answers."""

import pytest

from benchmarks.end_sides import HEAVY, LORAS, LogRow, SideRun, folded, parts_of, peer_order, play
from pentimento.domain.errors import Unavailable
from zoo.registry import entry_of

LOG = [LogRow(row, f"number {row}", ()) for row in range(7)]


def test_parts_of_keeps_rows_in_order() -> None:
    parts = parts_of(LOG, 3)

    assert [one for part in parts for one in part] == LOG
    assert [len(part) for part in parts] == [2, 2, 3]


def test_folded_loras_have_no_duplicates() -> None:
    assert folded(("lora-000", "lora-004", "lora-003")) == (LORAS[0], LORAS[1])


def test_peer_order_equals_suite_request() -> None:
    order = peer_order(LogRow(3, "a circle", (LORAS[0],)))

    assert (order.prompt, order.loras, order.seed) == ("a circle", (LORAS[0],), LOG[3].seed)
    assert order.steps == entry_of(HEAVY)["default_steps"]


async def test_play_generates_each_row_once_and_failures_are_infinite() -> None:
    run, under_way, most = SideRun(), set[int](), 0

    async def paint(asked: LogRow) -> tuple[bytes, str, int]:
        nonlocal most
        under_way.add(asked.row)
        most = max(most, len(under_way))
        under_way.remove(asked.row)
        if asked.row == 4:
            raise Unavailable("NO_WORKER", "nobody is there")
        return b"picture", "noise", 4

    await play(paint, LOG, 2, run)

    assert sorted(run.images) == [0, 1, 2, 3, 5, 6]
    assert run.latencies_s[4] == float("inf")
    assert sorted(run.told) == ["failed: NO_WORKER", *["noise"] * 6]
    assert run.steps == [4] * 6


@pytest.mark.parametrize(("failed_count", "p95_s"), [(0, 95.0), (5, 95.0), (6, float("inf"))])
def test_p95_with_many_failures_is_infinite(failed_count: int, p95_s: float) -> None:
    latencies_s = {row: float(row + 1) if row < 100 - failed_count else float("inf") for row in range(100)}
    run = SideRun({0: b""}, latencies_s, [1.0])

    assert run.p95_s == p95_s
    assert run.trial_row("trial", 2)[-1] == (p95_s if p95_s < 100 else None)


def test_processor_seconds_sum_by_service() -> None:
    run = SideRun()

    run.note_processor_s({"gateway": 1.0}, {"gateway": 1.5, "embedder": 0.25})
    run.note_processor_s({"gateway": 2.0, "embedder": 0.5}, {"gateway": 2.25, "embedder": 0.5})

    assert run.processor_s == {"gateway": 0.75, "embedder": 0.25}
