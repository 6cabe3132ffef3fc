"""Test logs in every form, and the place named in errors."""

import json
import re

import pytest

from lab.studies import read_prompt_log
from lab.workloads import Arrival, Workload, save_workload
from pentimento.domain.errors import InvalidArgument, NotFound
from tests.support.refusals import wrong_refusals
from tests.support.text_files import write_lines


def test_lines_of_text_are_prompts_without_times_and_users(tmp_path):
    log = read_prompt_log(write_lines(tmp_path / "log.txt.gz", "a cat", "a dog"))

    assert log.prompts == ("a cat", "a dog")
    assert (log.at_s, log.users) == (None, None)
    assert log.in_order().tolist() == [0, 1]


def test_json_lines_have_times_and_an_order(tmp_path):
    lines = [
        {"prompt": "late", "timestamp": "2022-08-20 09:00:00+00:00", "user_name": 7},
        {"prompt": "early", "timestamp": "2022-08-20T08:59:00", "user_name": "b"},
    ]

    log = read_prompt_log(write_lines(tmp_path / "log.jsonl", *map(json.dumps, lines)))

    assert log.at_s.tolist() == [1660986000.0, 1660985940.0]
    assert log.users == ("7", "b")
    assert log.in_order().tolist() == [1, 0]


def test_a_table_has_them_too(tmp_path):
    log = read_prompt_log(write_lines(tmp_path / "log.tsv", "caption\tat_s\tuser", 'a "cat\t0.5\ta', "a dog\t2\tb"))

    assert log.prompts == ('a "cat', "a dog")
    assert log.at_s.tolist() == [0.5, 2.0]
    assert log.users == ("a", "b")


def test_a_workload_is_a_log(tmp_path):
    arrivals = tuple(Arrival(float(at), f"tenant-{at}", "a cat", "standard", 60.0, 50, 0) for at in range(3))
    save_workload(Workload("made", arrivals, {"composite": True}), tmp_path / "w.jsonl")

    log = read_prompt_log(tmp_path / "w.jsonl")

    assert log.prompts == ("a cat",) * 3
    assert log.at_s.tolist() == [0.0, 1.0, 2.0]
    assert log.users == ("tenant-0", "tenant-1", "tenant-2")
    assert log.composite


WRONG = [
    ("log.jsonl", ['{"prompt": "a"}', "{"], "log.jsonl:2"),
    ("log.jsonl", ['{"prompt": "a"}', '{"prompt": 3}'], "log.jsonl:2: prompt"),
    ("log.jsonl", ['{"text": "a"}', '{"text": "b"}'], "log.jsonl:1: prompt"),
    ("log.jsonl", ['{"prompt": "a", "at_s": 1}', '{"prompt": "b"}'], "log.jsonl:2: at_s"),
    ("log.jsonl", ['{"prompt": "a", "at_s": 1}', '{"prompt": "b", "at_s": "x"}'], "log.jsonl:2: at_s"),
    ("log.jsonl", ['{"prompt": "a", "at_s": 1}', '{"prompt": "b", "at_s": NaN}'], "log.jsonl:2: at_s"),
    ("log.jsonl", ['{"prompt": "a", "timestamp": "yesterday"}'], "log.jsonl:1: timestamp"),
    ("log.jsonl", ['{"prompt": "a", "user": "u"}', '{"prompt": "b", "user": []}'], "log.jsonl:2: user"),
    ("log.jsonl", ['{"prompt": "a", "user": "u"}', '{"prompt": "b", "user": ""}'], "log.jsonl:2: user"),
    ("log.csv", ["prompt,at_s", "a,1", "b"], "log.csv:3"),
    ("log.csv", ["prompt,at_s", "a,1", "b,-1"], "log.csv:3: at_s"),
    ("log.txt", ["one"], "log.txt"),
    ("log.jsonl", [], "log.jsonl"),
    ("log.csv", ["prompt"], "log.csv"),
    ("log.bin", ["a", "b"], "log.bin"),
]


def test_wrong_line_names_file_line_and_field(tmp_path):
    rows = [(name, lines, f"^{re.escape(str(tmp_path / field))}: ") for name, lines, field in WRONG]

    def read(name, lines):
        read_prompt_log(write_lines(tmp_path / name, *lines))

    assert wrong_refusals(InvalidArgument, read, rows) == []


def test_broken_gzip_and_missing_file_are_named(tmp_path):
    (tmp_path / "log.txt.gz").write_bytes(b"no gzip")

    with pytest.raises(InvalidArgument, match="whole gzip"):
        read_prompt_log(tmp_path / "log.txt.gz")
    with pytest.raises(NotFound):
        read_prompt_log(tmp_path / "none.txt")


def test_repr_of_a_log_has_no_prompt(tmp_path):
    log = read_prompt_log(write_lines(tmp_path / "log.txt", "a secret", "another secret"))

    assert "secret" not in repr(log)
