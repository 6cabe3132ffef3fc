"""Test the load generator and its command against a real server that answers by a script."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from lab.commands import load
from lab.runs import Outcome, RequestRecord, Run, load_run, save_run
from lab.runs.load import LoadSettings, play
from lab.workloads import Content, SloClass, Workload, from_trace, save_workload
from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import add_ImageServiceServicer_to_server
from pentimento.cli import cli, describe
from pentimento.domain.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted, Unavailable
from pentimento.domain.generation import Provenance
from pentimento.domain.image_request import Completed, ImageFormat
from pentimento.rpc.server import RpcServer
from pentimento.rpc.settings import RpcServerSettings
from pentimento.sdk import AsyncClient, RetryPolicy
from pentimento.wire.codec import encode
from tests.support.values import a_provenance, a_spec

PROMPTS = ("done", "full", "late", "never")
QUICK = LoadSettings(grace_s=0.2, lead_s=0.0)
ROOT = Path(__file__).parents[3]
# It asks once, and would not ask a server that stands still for a second.
PATIENT_COMMAND = """
import pytest
from pentimento.cli import main
from tests.support.patient_connections import be_patient

be_patient(pytest.MonkeyPatch())
main()
"""


@dataclass
class Gallery:
    """Answer by the prompt. Images wait until `together` requests have arrived."""

    together: int = 1
    asked: list[pb.GenerateRequest] = field(default_factory=list)
    there: asyncio.Event = field(default_factory=asyncio.Event)

    async def Generate(self, request: pb.GenerateRequest, context: object) -> AsyncIterator[pb.GenerateResponse]:
        self.asked.append(request)
        if len(self.asked) >= self.together:
            self.there.set()
        prompt = request.request.prompt
        if prompt == "full":
            raise ResourceExhausted("QUEUE_FULL", "full", retry_after_ms=100)
        yield pb.GenerateResponse(accepted=pb.Accepted(request_id=f"id-{len(self.asked)}"))
        if prompt == "late":
            raise DeadlineExceeded("PREDICTED_LATE", "late")
        if prompt == "never":
            await asyncio.Event().wait()
        await self.there.wait()
        yield encode(Completed("id", b"image", ImageFormat.PNG, 8, 8, provenance(prompt)), pb.GenerateResponse)

    async def ListModels(self, request: object, context: object) -> pb.ListModelsResponse:
        return pb.ListModelsResponse()

    async def _unused(self, request: object, context: object) -> None:
        raise AssertionError("not asked for here")

    Cancel = GetRequest = Explain = Replay = Pin = Unpin = _unused
    Submit = Attach = FindCell = ListRequests = GetResultUrl = GetWebhookKey = _unused


def provenance(prompt: str) -> Provenance:
    return a_provenance(request_id="id", spec=a_spec(prompt=prompt), build_version="build-1")


@asynccontextmanager
async def serving(gallery: Gallery, tmp_path: Path) -> AsyncIterator[str]:
    address = f"unix:{tmp_path}/s"
    server = RpcServer(RpcServerSettings(listen=(address,)), "frontdoor")
    server.add(add_ImageServiceServicer_to_server, gallery, "pentimento.api.image.v1.ImageService")
    await server.start()
    try:
        yield address
    finally:
        await server.stop()


def workload(times: list[float], prompts: tuple[str, ...] = ("done",), deadline_s: float = 60.0) -> Workload:
    content = Content(prompts, slo_classes=(SloClass("standard", deadline_s),))
    return from_trace(times, np.random.default_rng(0), content)


async def played(gallery: Gallery, tmp_path: Path, made: Workload, settings: LoadSettings) -> list[RequestRecord]:
    async with serving(gallery, tmp_path) as address, AsyncClient(address, retries=RetryPolicy(tries=1)) as client:
        return await play(made, {"": client}, settings)


async def test_every_ending_is_recorded_in_the_workloads_order(tmp_path: Path) -> None:
    made = workload([0.0, 0.0, 0.0, 0.0], PROMPTS, deadline_s=60.0)
    impatient = replace(made, arrivals=tuple(replace(one, deadline_s=0.1) for one in made.arrivals[3:]))
    mixed = replace(made, arrivals=made.arrivals[:3] + impatient.arrivals)

    records = await played(Gallery(), tmp_path, mixed, QUICK)

    assert [record.outcome for record in records] == [
        Outcome.COMPLETED,
        Outcome.REJECTED,
        Outcome.DROPPED,
        Outcome.FAILED,
    ]
    assert records[0].model == "tiny" and records[0].steps == 10


async def test_requests_do_not_wait_for_each_other(tmp_path: Path) -> None:
    # The server answers after all five have arrived: a generator that waits for answers would never end.
    gallery = Gallery(together=5)

    records = await played(gallery, tmp_path, workload([0.0, 0.01, 0.02, 0.03, 0.04]), QUICK)

    assert {record.outcome for record in records} == {Outcome.COMPLETED}


async def test_latencies_count_from_when_a_request_was_due(tmp_path: Path) -> None:
    # Due before the run can send it: the generator is late on purpose, by a lead that is over before it begins.
    records = await played(Gallery(), tmp_path, workload([0.0, 0.3]), QUICK)

    assert [record.arrived_s for record in records] == [0.0, 0.3]
    for record in records:
        (late,) = (stage for stage in record.stages if stage.name == "generator")
        assert late.began_s == record.arrived_s and record.latency_s >= late.ended_s - late.began_s


async def test_remaining_deadline_is_sent_on_request(tmp_path: Path) -> None:
    told, untold = Gallery(), Gallery()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    await played(told, tmp_path / "a", workload([0.0], deadline_s=60.0), QUICK)
    await played(untold, tmp_path / "b", workload([0.0]), replace(QUICK, send_deadline=False))

    assert 0 < told.asked[0].request.deadline_ms <= 60_000
    assert not untold.asked[0].request.deadline_ms


async def test_score_gives_the_quality(tmp_path: Path) -> None:
    async with serving(Gallery(), tmp_path) as address, AsyncClient(address) as client:
        (record,) = await play(workload([0.0]), {"": client}, QUICK, score=lambda completed: 0.75)

    assert record.quality == 0.75


async def test_image_scored_at_cancellation_was_answered(tmp_path: Path) -> None:
    judged, end, told = asyncio.Event(), threading.Event(), list[RequestRecord]()
    loop = asyncio.get_running_loop()

    def score(completed: Completed) -> float:
        loop.call_soon_threadsafe(judged.set)
        end.wait()
        return 1.0

    async with serving(Gallery(), tmp_path) as address, AsyncClient(address) as client:
        run = asyncio.create_task(
            play(workload([0.0]), {"": client}, QUICK, score=score, on_answer=lambda record, _: told.append(record))
        )
        await judged.wait()
        run.cancel()
        await asyncio.wait([run])
        end.set()

    assert [(record.outcome, record.quality) for record in told] == [(Outcome.COMPLETED, None)]


async def test_tenant_without_client_is_named_first(tmp_path: Path) -> None:
    gallery = Gallery()

    async with serving(gallery, tmp_path) as address, AsyncClient(address) as client:
        with pytest.raises(InvalidArgument, match="clients: must have one for tenant 'default'"):
            await play(workload([0.0]), {"other": client}, QUICK)

    assert gallery.asked == []


async def test_error_of_the_generator_is_raised(tmp_path: Path) -> None:
    def broken(completed: Completed) -> float:
        raise ZeroDivisionError

    async with serving(Gallery(), tmp_path) as address, AsyncClient(address) as client:
        with pytest.raises(ExceptionGroup):
            await play(workload([0.0]), {"": client}, QUICK, score=broken)


async def command(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli, ["bench", *arguments])


async def test_load_command_writes_records_and_reports(tmp_path: Path) -> None:
    save_workload(workload([0.0, 0.05, 0.1], PROMPTS[:3], deadline_s=600.0), tmp_path / "w.jsonl")
    page, document, kept = tmp_path / "r.html", tmp_path / "r.json", tmp_path / "run.jsonl"

    async with serving(Gallery(), tmp_path) as address:
        reports = ("--report", str(page), "--report", str(document))
        done = await command(
            "load", str(tmp_path / "w.jsonl"), "--address", address, "--save", str(kept), *reports
        )  # fmt: skip

    assert done.exit_code == 0, done.output
    assert "SLO attainment" in done.output and "1 dropped, 1 rejected" in done.output
    run = load_run(kept)
    assert run.provenance["kind"] == "live" and run.provenance["builds"] == ["build-1"]
    assert run.provenance["reasons"] == {"PREDICTED_LATE": 1, "QUEUE_FULL": 1}
    assert [record.outcome for record in run.records] == [Outcome.COMPLETED, Outcome.REJECTED, Outcome.DROPPED]
    assert json.loads(document.read_text())["overall"]["violations"] == 2
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("told_to_stop", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_run_keeps_its_records(tmp_path: Path, told_to_stop: signal.Signals) -> None:
    made = workload([0.0, 0.0, 3600.0], ("late", "never", "done"))
    save_workload(made, tmp_path / "w.jsonl")
    kept, document, gallery = tmp_path / "run.jsonl", tmp_path / "r.json", Gallery(together=2)
    flags = ("--save", str(kept), "--report", str(document))

    async with serving(gallery, tmp_path) as address:
        command_line = ("-c", PATIENT_COMMAND, "bench", "load", str(tmp_path / "w.jsonl"), "--address", address)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command_line, *flags, cwd=ROOT, stderr=subprocess.PIPE
        )
        await asyncio.wait_for(gallery.there.wait(), 120)
        process.send_signal(told_to_stop)
        _, told = await process.communicate()

    assert process.returncode == 130, told
    run = load_run(kept)
    assert run.provenance["interrupted"] is True
    # The unanswered request is cancelled, the one due later was never sent.
    assert len(run.records) == 2 and run.records[1].outcome is Outcome.CANCELLED
    assert json.loads(document.read_text())["provenance"]["interrupted"] is True


async def test_run_with_unwritable_file_is_still_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save_workload(workload([0.0]), tmp_path / "w.jsonl")
    monkeypatch.setattr(load, "save_run", full)

    async with serving(Gallery(), tmp_path) as address:
        done = await command(
            "load", str(tmp_path / "w.jsonl"), "--address", address, "--save", str(tmp_path / "run.jsonl")
        )

    assert isinstance(done.exception, OSError)
    assert "SLO attainment" in done.output


async def test_runs_are_laid_side_by_side(tmp_path: Path) -> None:
    record = RequestRecord("r", "a", "standard", "heavy", 0.0, 10.0, 2.0, Outcome.COMPLETED)
    for name in ("live", "simulated"):
        save_run(Run(name, {"kind": name}, (record,)), tmp_path / f"{name}.jsonl")

    done = await command("report", *(str(tmp_path / f"{name}.jsonl") for name in ("live", "simulated")))

    assert done.exit_code == 0 and done.output.split()[:2] == ["live", "simulated"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--report", "r.pdf"], "report: must end in one of .html, .json, .png, .txt, got r.pdf"),
        (["--rate", "-1"], "rate: must be at least 0"),
        (["--tenant-token", "a"], "tenant-token: must be TENANT=TOKEN"),
        (["--grace", "-1"], "grace_s: must be at least 0"),
    ],
)
async def test_wrong_option_names_its_field(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = await command("load", "--address", f"unix:{tmp_path}/s", *arguments)

    assert isinstance(done.exception, InvalidArgument)
    assert message in describe(done.exception)


async def test_negative_warm_up_is_wrong_usage(tmp_path: Path) -> None:
    done = await command("load", "--address", f"unix:{tmp_path}/s", "--warm-up", "-1")

    assert (done.exit_code, "'--warm-up'" in done.output) == (2, True)


async def test_missing_suite_is_unavailable(tmp_path: Path) -> None:
    done = await command("load", "--address", f"unix:{tmp_path}/s", "--duration", "1")

    assert isinstance(done.exception, Unavailable)
