"""Spans: what ran is noted with its times, whatever came of it."""

import os
from pathlib import Path
from time import monotonic

import pytest

from pentimento.telemetry.spans import SpanLog, read_spans


def test_spans_are_read_as_they_were_noted(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    log, before_s = SpanLog(str(path)), monotonic()

    with log.span("encode", 2), log.span("inner"):
        pass
    with pytest.raises(KeyError), log.span("broken", 1):
        raise KeyError

    spans = read_spans(path)
    assert [(span.what, span.row_count) for span in spans] == [("inner", 0), ("encode", 2), ("broken", 1)]
    assert all(before_s <= span.began_s <= span.ended_s <= monotonic() for span in spans)
    assert {span.process_id for span in spans} == {os.getpid()}


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="it takes a device that is always full")
def test_a_full_disk_costs_the_span_and_not_what_it_is_of() -> None:
    log, done = SpanLog("/dev/full"), []

    with log.span("denoise"):
        done.append("denoised")

    assert done == ["denoised"]


def test_two_logs_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "spans.jsonl")

    for what in ("first", "second"):
        with SpanLog(path).span(what):
            pass

    assert [span.what for span in read_spans(Path(path))] == ["first", "second"]


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with SpanLog().span("encode"):
        pass

    assert list(tmp_path.iterdir()) == []
