"""Test that files of records are read as written, and that errors name file, line, field and limit."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.runs import Outcome, RequestRecord, Run, StageSpan, StartKind, load_run, save_run
from pentimento.domain.errors import InvalidArgument
from tests.support.refusals import wrong_refusals

SECONDS = st.floats(0, 1e6)
OPTIONAL = st.none() | st.floats(0, 1)
RECORDS = st.builds(
    lambda came, took, **fields: RequestRecord(arrived_s=came, ended_s=came + took, **fields),
    SECONDS,
    SECONDS,
    request_id=st.text(),
    tenant=st.text(),
    slo_class=st.text(),
    pool=st.text(),
    deadline_s=SECONDS,
    outcome=st.sampled_from(Outcome),
    start=st.sampled_from(StartKind),
    start_step=st.integers(0, 50),
    steps=st.integers(0, 50),
    model=st.text(),
    deferred=st.booleans(),
    confidence=OPTIONAL,
    quality=st.none() | st.floats(-10, 10),
    stages=st.lists(st.builds(lambda name, at, took: StageSpan(name, at, at + took), st.text(), SECONDS, SECONDS)).map(
        tuple
    ),
    device_s=SECONDS,
)
PLAIN = RequestRecord("r1", "a", "standard", "heavy", 1.0, 10.0, 2.0, Outcome.COMPLETED)


@given(st.lists(RECORDS, max_size=4))
def test_records_are_read_as_written(tmp_path_factory: pytest.TempPathFactory, records: list[RequestRecord]) -> None:
    path = tmp_path_factory.mktemp("run") / "run.jsonl.gz"
    run = Run("run", {"kind": "simulated"}, tuple(records))

    save_run(run, path)

    assert load_run(path) == run


def test_read_record_has_enum_members(tmp_path: Path) -> None:
    save_run(Run("run", {}, (PLAIN,)), tmp_path / "r.jsonl")

    (record,) = load_run(tmp_path / "r.jsonl").records

    assert record.outcome is Outcome.COMPLETED and record.start is StartKind.NOISE


WRONG: list[tuple[str, object, str]] = [
    ("outcome", "lost", "must be one of completed, late"),
    ("start", "nothing", "must be one of noise"),
    ("ended_s", 0.5, r"must not be before arrived_s \(1\)"),
    ("arrived_s", -1, "must be a number of at least 0"),
    ("deferred", 1, "must be true or false"),
    ("steps", 1.5, "must be a whole number"),
    ("stages", [["queue", 2.0, 1.0]], "must be a list of"),
    ("stages", [["queue", 2.0]], "must be a list of"),
    ("stages", "queue", "must be a list of"),
    ("confidence", "high", "must be a number"),
    ("quality", float("nan"), "must be a number"),
]


def test_wrong_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    save_run(Run("run", {}, (PLAIN,)), path)
    header, line = path.read_text().splitlines()

    def load(field: str, value: object) -> None:
        path.write_text(f"{header}\n{json.dumps(json.loads(line) | {field: value})}\n")
        load_run(path)

    rows = [(field, value, rf"r\.jsonl:2: {field}: {limit}") for field, value, limit in WRONG]

    assert wrong_refusals(InvalidArgument, load, rows) == []


@pytest.mark.parametrize("content", ["", "7", '{"format": 9}'])
def test_file_without_run_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.jsonl").write_text(content)

    with pytest.raises(InvalidArgument, match=r"r\.jsonl"):
        load_run(tmp_path / "r.jsonl")


def test_file_cut_short_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    save_run(Run("run", {}, (PLAIN, PLAIN)), path)
    path.write_text("\n".join(path.read_text().splitlines()[:2]))

    with pytest.raises(InvalidArgument, match=r"r\.jsonl:1: records: .* a part is missing"):
        load_run(path)
