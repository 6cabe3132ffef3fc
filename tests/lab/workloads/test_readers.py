"""Test readers of public logs, on a few lines of each."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lab.workloads.readers import read_azure_times, read_embeddings, read_mooncake, read_production_requests
from pentimento.domain.errors import InvalidArgument
from tests.support.refusals import wrong_refusals
from tests.support.text_files import write_lines

GENTD26 = (
    "gmt_create,predict_type,predict_status,exec_s,group,prompt_chars,neg_chars,num_images,steps,checkpoint,style,loras"
)


def test_azures_arrivals_are_seconds_from_the_first(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "azure.csv.gz",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 23:59:59.6805900,374,44",
        "2023-11-17 00:00:01.0000000,396,109",
    )

    assert read_azure_times(path) == pytest.approx([0.0, 1.31941], abs=1e-6)


def test_mooncakes_requests_have_their_keys(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "m.jsonl", '{"timestamp": 500, "hash_ids": [0, 1]}', '{"timestamp": 2000, "hash_ids": [0]}'
    )

    found = read_mooncake(path)

    assert [(request.at_s, request.keys) for request in found] == [(0.0, (0, 1)), (1.5, (0,))]


def test_production_requests_have_adapters_and_gaps(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "g.csv.gz",
        GENTD26,
        "2024-11-15 16:57:50,TXT_2_IMG,SUCCEED,32,G0000,63,26,1,30,M0000,S04,L0000@0.8;L0003@1",
        "2024-11-15 16:58:00,TXT_2_IMG,FAILED,0,G0001,63,26,,,M0001,,",
    )

    first, second = read_production_requests(path)

    assert first.loras == (("L0000", 0.8), ("L0003", 1.0)) and first.steps == 30 and first.succeeded
    assert (second.at_s, second.steps, second.images, second.loras) == (10.0, None, None, ())
    assert not second.succeeded


WRONG: list[tuple[Callable[[Path], object], list[str], str]] = [
    (read_azure_times, ["TIMESTAMP", "yesterday"], r":2: TIMESTAMP: must be a time like"),
    (read_azure_times, ["TIME", "2023-11-16 18:15:46"], r":2: TIMESTAMP: is missing"),
    (read_azure_times, ["TIMESTAMP,a", "2023-11-16 18:15:46"], r":2: must have 2 fields, got 1"),
    (read_mooncake, ['{"timestamp": 1, "hash_ids": "x"}'], r":1: hash_ids: must be a list of whole numbers"),
    (read_mooncake, ["timestamp"], r":1: must be a JSON object"),
    (
        read_production_requests,
        [GENTD26, "2024-11-15 16:57:50,T,SUCCEED,32,G,1,1,1,30,M,S,L0000"],
        r":2: loras: must be like",
    ),
]


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    def read(reader: Callable[[Path], object], lines: list[str]) -> None:
        reader(write_lines(tmp_path / "log.csv", *lines))

    assert wrong_refusals(InvalidArgument, read, WRONG) == []


def test_embeddings_become_unit_vectors(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array([[3.0, 4.0], [0.0, 2.0]], np.float16))

    assert read_embeddings(tmp_path / "e.npy", 2) == pytest.approx(np.array([[0.6, 0.8], [0.0, 1.0]]))


def test_embeddings_of_another_number_or_of_nothing_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.zeros((2, 2), np.float32))

    with pytest.raises(InvalidArgument, match=r"must be \(3, width\)"):
        read_embeddings(tmp_path / "e.npy", 3)
    with pytest.raises(InvalidArgument, match="not zero; row 0"):
        read_embeddings(tmp_path / "e.npy", 2)
