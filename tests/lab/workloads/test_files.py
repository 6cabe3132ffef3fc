"""Workload files: what is written is read back; what is wrong is named by file, line, field and limit."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.workloads import Arrival, Content, Workload, load_workload, poisson, save_workload
from pentimento.domain.errors import InvalidArgument, NotFound

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
def test_any_arrival_survives_the_file(arrivals: list[Arrival], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("workload") / "w.jsonl.gz"
    made = Workload("w", tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)), {"why": "test"})

    save_workload(made, path)

    assert load_workload(path) == made


def test_embeddings_lie_beside_the_file(workload: Workload, tmp_path: Path) -> None:
    save_workload(workload, tmp_path / "w.jsonl")

    found = load_workload(tmp_path / "w.jsonl")

    assert {path.name for path in tmp_path.iterdir()} == {"w.jsonl", "w.npy"}
    assert found == workload and found.embeddings is not None
    np.testing.assert_array_equal(found.embeddings, workload.embeddings)


def test_the_same_workload_is_the_same_file(workload: Workload, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_workload(workload, tmp_path / name / "w.jsonl.gz")

    assert (tmp_path / "one" / "w.jsonl.gz").read_bytes() == (tmp_path / "two" / "w.jsonl.gz").read_bytes()


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
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
    ],
)
def test_a_wrong_field_is_named(workload: Workload, tmp_path: Path, field: str, value: object, limit: str) -> None:
    path = tmp_path / "w.jsonl"
    save_workload(replace(workload, arrivals=workload.arrivals[:3]), path)
    lines = path.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | {field: value})
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(InvalidArgument, match=rf"w\.jsonl:3: {field}: {limit}"):
        load_workload(path)


def test_a_missing_field_is_named(workload: Workload, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    save_workload(workload, path)
    path.write_text(path.read_text().replace('"slo_class"', '"class"', 1))

    with pytest.raises(InvalidArgument, match=r"w\.jsonl:2: slo_class: is missing"):
        load_workload(path)


def test_a_file_cut_short_is_refused(workload: Workload, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    save_workload(workload, path)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))

    with pytest.raises(InvalidArgument, match=r"w\.jsonl:1: arrivals: .* a part is missing"):
        load_workload(path)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 2}'])
def test_what_is_no_workload_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text(content)

    with pytest.raises(InvalidArgument, match=r"w\.jsonl"):
        load_workload(tmp_path / "w.jsonl")


def test_what_is_no_text_or_no_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.jsonl.gz").write_bytes(b"plain")

    with pytest.raises(InvalidArgument, match=r"a\.jsonl: must be UTF-8"):
        load_workload(tmp_path / "a.jsonl")
    with pytest.raises(InvalidArgument, match=r"b\.jsonl\.gz: must be a whole gzip file"):
        load_workload(tmp_path / "b.jsonl.gz")
    with pytest.raises(NotFound, match=r"c\.jsonl: no such file"):
        load_workload(tmp_path / "c.jsonl")


def test_pickled_embeddings_are_never_opened(workload: Workload, tmp_path: Path) -> None:
    save_workload(workload, tmp_path / "w.jsonl")
    np.save(tmp_path / "w.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)

    with pytest.raises(InvalidArgument, match=r"w\.npy: must be a \.npy file of numbers"):
        load_workload(tmp_path / "w.jsonl")
