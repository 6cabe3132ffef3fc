"""Test that workload files are read as written, and that errors name file, line, field and limit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.workloads import Arrival, Content, Workload, load_workload, poisson, save_workload
from pentimento.domain.errors import InvalidArgument, NotFound
from tests.support.refusals import wrong_refusals

NAMES = st.text(min_size=1, max_size=8)
ARRIVALS = st.builds(
    Arrival,
    at_s=st.floats(0, 1e6),
    tenant=NAMES,
    prompt=st.text(),
    slo_class=NAMES,
    deadline_s=st.floats(0.001, 1e6),
    steps=st.integers(1, 1000),
    seed=st.integers(0, 2**31),
    model=st.text(),
    loras=st.lists(NAMES, max_size=3).map(tuple),
    controlnets=st.lists(NAMES, max_size=3).map(tuple),
)


@pytest.fixture
def workload() -> Workload:
    vectors = np.eye(3, 4, dtype=np.float32)
    return poisson(1.0, 20.0, np.random.default_rng(1), Content(("a", "b", "c"), vectors))


@given(arrivals=st.lists(ARRIVALS, max_size=5))
def test_arrivals_are_read_as_written(arrivals: list[Arrival], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("workload") / "w.jsonl.gz"
    made = Workload("w", tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)), {"why": "test"})

    save_workload(made, path)

    assert load_workload(path) == made


def test_embeddings_have_a_file_of_their_own(workload: Workload, tmp_path: Path) -> None:
    save_workload(workload, tmp_path / "w.jsonl")

    found = load_workload(tmp_path / "w.jsonl")

    assert {path.name for path in tmp_path.iterdir()} == {"w.jsonl", "w.npy"}
    assert found == workload and found.embeddings is not None
    np.testing.assert_array_equal(found.embeddings, workload.embeddings)


def test_same_workload_is_same_file(workload: Workload, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_workload(workload, tmp_path / name / "w.jsonl.gz")

    assert (tmp_path / "one" / "w.jsonl.gz").read_bytes() == (tmp_path / "two" / "w.jsonl.gz").read_bytes()


WRONG: list[tuple[str, object, str]] = [
    ("at_s", "soon", "must be a number"),
    ("at_s", float("nan"), "must be a number"),
    ("at_s", -1, "must be a number of at least 0"),
    ("at_s", 0.0, "must not be before the line ahead"),
    ("deadline_s", 0, "must be above 0"),
    ("tenant", 7, "must be text"),
    ("prompt", None, "must be text"),
    ("steps", 0, "must be a number of at least 1"),
    ("steps", 1.5, "must be a whole number"),
    ("steps", True, "must be a number"),
    ("loras", "neon", "must be a list of texts"),
    ("embedding_row", 3, "must be below the number of embeddings, 3"),
]


def test_wrong_field_is_named(workload: Workload, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    save_workload(replace(workload, arrivals=workload.arrivals[:3]), path)
    lines = path.read_text().splitlines()

    def load(field: str, value: object) -> None:
        path.write_text("\n".join([*lines[:2], json.dumps(json.loads(lines[2]) | {field: value}), *lines[3:]]) + "\n")
        load_workload(path)

    rows = [(field, value, rf"w\.jsonl:3: {field}: {limit}") for field, value, limit in WRONG]

    assert wrong_refusals(InvalidArgument, load, rows) == []


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "missing field": (lambda data: data.replace(b'"slo_class"', b'"class"', 1), ":2: slo_class: is missing"),
    "cut short": (lambda data: b"".join(data.splitlines(keepends=True)[:-1]), ":1: arrivals: .* a part is missing"),
    "empty": (lambda data: b"", ""),
    "list": (lambda data: b"[]", ""),
    "cut JSON": (lambda data: b"{", ""),
    "other format": (lambda data: b'{"format": 2}', ""),
    "bytes": (lambda data: b"\xff\xfe\x00", ": must be UTF-8"),
}


def test_broken_file_is_rejected(workload: Workload, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    save_workload(workload, path)
    sound = path.read_bytes()

    def load(spoil: Callable[[bytes], bytes]) -> None:
        path.write_bytes(spoil(sound))
        load_workload(path)

    rows = [(spoil, r"w\.jsonl" + message) for spoil, message in BROKEN.values()]

    assert wrong_refusals(InvalidArgument, load, rows) == []


def test_missing_file_and_broken_gzip_are_named(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl.gz").write_bytes(b"plain")

    with pytest.raises(InvalidArgument, match=r"b\.jsonl\.gz: must be a whole gzip file"):
        load_workload(tmp_path / "b.jsonl.gz")
    with pytest.raises(NotFound, match=r"c\.jsonl: no such file"):
        load_workload(tmp_path / "c.jsonl")


def test_pickled_embeddings_are_rejected(workload: Workload, tmp_path: Path) -> None:
    save_workload(workload, tmp_path / "w.jsonl")
    np.save(tmp_path / "w.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)

    with pytest.raises(InvalidArgument, match=r"w\.npy: must be a \.npy file of numbers"):
        load_workload(tmp_path / "w.jsonl")
