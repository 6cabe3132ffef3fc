"""Test `pentimento bench trace-study` on files: its reports, and the errors before it computes."""

import json
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from lab.commands.journal_log import read_journal_log
from pentimento.api.frontdoor.v1 import journal_pb2
from pentimento.cli.programs import bench
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, PentimentoError
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest
from tests.support.refusals import wrong_refusals
from tests.support.text_files import write_lines

NO_VECTORS = "--embeddings must be given, or else --embedder-address, and not both"
PROMPTS = ["a cat", "a dog", "a cat", "a ship"] * 4


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.txt"
    path.write_text("".join(prompt + "\n" for prompt in PROMPTS))
    vectors = np.eye(3)[[["a cat", "a dog", "a ship"].index(prompt) for prompt in PROMPTS]]
    np.save(tmp_path / "log.npy", vectors.astype(np.float16), allow_pickle=False)
    return path


def run(log: Path, *arguments: object) -> str:
    result = CliRunner().invoke(bench, ["trace-study", str(log), *map(str, arguments)])
    if isinstance(result.exception, PentimentoError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_log_with_its_embeddings_gives_all_forms(log, tmp_path):
    reports = [argument for form in ("json", "txt", "svg", "png") for argument in ("-r", tmp_path / f"study.{form}")]

    shown = run(log, "--embeddings", tmp_path / "log.npy", "--thresholds", "0.9:0.4", *reports)

    document = json.loads((tmp_path / "study.json").read_text())
    assert document["ceiling"]["saved_share"] == pytest.approx(0.4 * 13 / 16)
    assert document["provenance"]["encoder"] == "log.npy"
    assert (tmp_path / "study.txt").read_text() == shown
    assert ElementTree.parse(tmp_path / "study.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")


def test_a_study_for_a_program_is_one_line(log, tmp_path):
    shown = run(log, "--embeddings", tmp_path / "log.npy", "--json")

    assert json.loads(shown)["provenance"]["encoder"] == "log.npy"
    assert shown.count("\n") == 1


def test_wrong_field_is_named(log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        ("-r", "study.pdf", "^report: "),
        ("-r", "nowhere/study.json", "^report: "),
        ("--thresholds", "much", "^thresholds: "),
        ("--warm-up", "99", "^warm-up: "),
    ]

    assert wrong_refusals(InvalidArgument, partial(run, log, "--embeddings", "log.npy"), rows) == []


def test_embeddings_of_another_log_are_refused(log, tmp_path):
    np.save(tmp_path / "other.npy", np.eye(3))

    with pytest.raises(InvalidArgument, match=r"must be \(16, width\)"):
        run(log, "--embeddings", tmp_path / "other.npy")


def test_png_without_matplotlib_is_rejected_first(log, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(FailedPrecondition, match="needs matplotlib"):
        run(log, "-r", tmp_path / "study.png")


EXCLUDING: list[tuple[list[str], str]] = [
    (["--journal", "state"], "LOG must be given, or else --journal, and not both"),
    ([], NO_VECTORS),
    (["--embeddings", __file__, "--embedder-address", "unix:x"], NO_VECTORS),
    (
        ["--embeddings", __file__, "--save-embeddings", "vectors.npy"],
        "--save-embeddings must come with --embedder-address",
    ),
]


def test_trace_study_with_excluding_options_is_wrong_usage() -> None:
    for arguments, words in EXCLUDING:
        done = CliRunner().invoke(bench, ["trace-study", __file__, *arguments])

        assert (done.exit_code, f"Error: {words}\n" in done.output) == (2, True), arguments


def test_trace_study_journal_leaves_out_replays(tmp_path):
    bodies = [journal_pb2.JournalledRequest(spec={"prompt": prompt}) for prompt in ("a cat", "a dog", "a ship")]
    bodies[1].replay.SetInParent()
    with closing(open_journal(f"sqlite:///{tmp_path}/frontdoor.sqlite")) as journal:
        for at, body in enumerate(bodies):
            data = body.SerializeToString()
            journal.accept(AcceptedRequest(f"r{at}", f"tenant-{at}", data, "", float(at), body_format=1)).result()

    log = read_journal_log(str(tmp_path))

    assert (log.prompts, log.users, log.at_s.tolist()) == (("a cat", "a ship"), ("tenant-0", "tenant-2"), [0.0, 2.0])


def test_trace_study_of_times_is_a_composite(log, tmp_path):
    head = (
        "gmt_create,predict_type,predict_status,exec_s,group,prompt_chars,neg_chars,"
        "num_images,steps,checkpoint,style,loras"
    )
    lines = [f"2024-11-15 16:57:{at:02d},TXT_2_IMG,SUCCEED,1,G{at % 2},5,,1,30,M,," for at in (3, 1, 2)]
    times = write_lines(tmp_path / "times.csv", head, *lines)
    np.save(tmp_path / "three.npy", np.eye(3), allow_pickle=False)

    shown = run(log, "--times", times, "--embeddings", tmp_path / "three.npy", "--json")

    study = json.loads(shown)
    assert (study["prompt_count"], study["user_count"], study["duration_s"]) == (3, 2, 2.0)
    assert study["provenance"]["composite"] and study["sessions"]["session_count"] == 2


@pytest.mark.parametrize(
    ("place", "error"),
    [("nowhere", NotFound), ("mysql://host/database", InvalidArgument), ("a://b://", InvalidArgument)],
)
def test_trace_study_of_no_journal_is_refused(place, error):
    with pytest.raises(error) as refusal:
        read_journal_log(place)

    assert refusal.value.violations[0].field in ("journal", "ledger_url")
