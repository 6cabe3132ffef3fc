"""Load on a running suite, its report, and the study of its requests."""

import json
import subprocess
import sys
from pathlib import Path

from lab.runs import Outcome, load_run
from pentimento import Client, ImageRequest
from pentimento.supervisor.local import LocalSuite


def test_bench_load_reports_stages_of_every_request(suite: LocalSuite, tmp_path: Path) -> None:
    flags = ("--rate", "6", "--duration", "1", "--steps", "4", "--deadline", "60", "--no-cache")
    files = ("--save", str(tmp_path / "run.jsonl"), "--report", str(tmp_path / "report.json"))
    state = ("--state-dir", str(suite.state.path))

    done = subprocess.run(
        [sys.executable, "-m", "pentimento.cli", "bench", "load", *flags, *files, *state],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )

    assert done.returncode == 0, done.stderr
    run = load_run(tmp_path / "run.jsonl")
    assert run.provenance["kind"] == "live" and len(run.records) > 0
    for record in run.records:
        assert record.outcome in (Outcome.COMPLETED, Outcome.LATE)
        assert {"queue", "wait_worker", "paint"} <= {stage.name for stage in record.stages}
        assert record.steps == 4 and record.device_s > 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert sum(stage["share"] for stage in report["stages"]) > 0.99


def test_trace_study_reads_journal_of_running_suite(suite: LocalSuite) -> None:
    with Client(suite.endpoint.public) as client:
        for prompt in ("a green cross on white", "a green cross on a white background"):
            client.generate(ImageRequest(prompt, seed=3, num_inference_steps=2))
    embedder = f"unix:{suite.state.sockets / 'embedder.sock'}"
    place = ("--journal", str(suite.state.path), "--embedder-address", embedder, "--json")

    done = subprocess.run(
        [sys.executable, "-m", "pentimento.cli", "bench", "trace-study", *place],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )

    assert done.returncode == 0, done.stderr
    study = json.loads(done.stdout)
    assert study["prompt_count"] >= 2 and study["user_count"] == 1
    assert study["sessions"]["within"]["mean"] > 0.2 and not study["provenance"]["composite"]
    assert "green cross" not in done.stdout
