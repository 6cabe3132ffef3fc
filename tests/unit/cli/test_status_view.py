"""Test the output of `pentimento status`."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.text import Text

from lab.fixtures.clocks import SetClock
from pentimento.api.frontdoor.v1.frontdoor_service_pb2 import GetStatusResponse, PoolStatus, RejectionCount
from pentimento.api.generation.v1.generation_pb2 import RejectedAdapter
from pentimento.api.image.v1.image_service_pb2 import Model
from pentimento.api.vectordb.v1.vectordb_gateway_service_pb2 import (
    EarnedCells,
    GetStatisticsResponse,
    MatchPredictor,
)
from pentimento.cli import status
from pentimento.cli.allocation_samples import AllocationSample
from pentimento.cli.status_view import LastTold, fleet_table, movement, render, sample_of
from pentimento.clients.suite_status import SuiteStatus
from pentimento.domain.errors import Unavailable
from pentimento.domain.fleet import (
    ComponentPlacement,
    Fleet,
    FollowedDeferral,
    Plan,
    Replica,
    ReplicaKind,
    ReplicaStatus,
    SteeredCount,
    UnplannedModel,
    WorkerAssignment,
)
from pentimento.domain.generation import PlanVersion
from pentimento.domain.weights import ComponentWeights, ModelChange, ShortModel, SwitchWay


def test_suite_without_a_cache_misses_none() -> None:
    status = SuiteStatus.of(Unavailable("GONE", "no"), Unavailable("GONE", "no"), None)

    assert set(status.unanswered) == {"controller", "frontdoor"}
    assert status.cache is None


def lines_of(fleet: Fleet | None = None, frontdoor: GetStatusResponse | None = None, cache: Any = None) -> list[str]:
    """Return the rendered lines without the table."""
    return [line.plain for line in render(SuiteStatus.of(fleet, frontdoor, cache)) if isinstance(line, Text)]


def fleet_of(plan: Plan | None = None, **parts: Any) -> Fleet:
    return Fleet(parts.pop("replicas", ()), plan or Plan(PlanVersion(7, 1)), 7, **parts)


WEIGHTS = (
    ComponentWeights("unet", "int8", 2_600_000_000),
    ComponentWeights("vae", "float16", 167_000_000),
    ComponentWeights("text_encoder", "float16", 246_000_000, in_host_memory=True),
)
HEAVY_LOADED = Replica(
    *("w1", ReplicaKind.UNET_WORKER, "unix:/x", 1),
    weights=WEIGHTS,
    short_models=(ShortModel("flux", 23_800_000_000, 21_600_000_000),),
    change=ModelChange("sdxl", SwitchWay.UNLOAD_FIRST, 6_900_000_000, 1_000_000_000, 4_000_000_000),
)
HOLDING = Plan(
    PlanVersion(7, 1),
    (WorkerAssignment("w1", "", "m", 1, prefetch=("ink", "neon")), WorkerAssignment("w2", "", "m", 1)),
    components=(
        ComponentPlacement(ReplicaKind.CONTROLNET, "canny", ("c1", "c2")),
        ComponentPlacement(ReplicaKind.CONTROLNET, "depth", ("c2",)),
    ),
)
UNPLANNED = Plan(PlanVersion(7, 2), allocator="resident", notes=("joint cannot plan (heavy has no profile)",))
FOLLOWED = FollowedDeferral("light>heavy", (0.25, 0.5, 1.0), (0.3, 0.65, 1.0), (0.2, 0.4, 1.0))
TURBO = Model(
    name="sdxl-turbo", default_steps=1, default_guidance_scale=0.0, default_width_px=512, default_height_px=512
)
LOHA = RejectedAdapter(name="loha", reason="UNSUPPORTED_LORA", message="loha.safetensors: it is a LoHa")
REFUSING = GetStatusResponse(
    rejected_count=5,
    rejections=[
        RejectionCount(reason="QUEUE_FULL", request_count=2),
        RejectionCount(reason="STORE_FULL", request_count=3),
    ],
    not_accepting_reason="STORE_FULL: ledger is full: no room",
)
GAINING = MatchPredictor(on=True, reason="it gains", search_s=0.1, image_s=0.87, net_s=1.5, skipped_count=30)
CACHE = GetStatisticsResponse(
    entry_count=3,
    hole_count=2,
    hole_step_count=25,
    match_predictor=GAINING,
    earned=EarnedCells(row_count=5, open_count=3, trial_count=81),
)


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        (
            fleet_of(replicas=(ReplicaStatus(HEAVY_LOADED, 0, live=True),)),
            [
                "weights   w1: 2.77 GB (unet 2,600 MB int8, vae 167 MB float16, text_encoder 246 MB float16 in host"
                " memory)",
                "memory    w1: flux needs 23.8 GB for its weights, 21.6 GB of the device are this worker's",
                "switch    w1: sdxl was read after the former model had left: 6.9 GB of weights, 1.0 GB of the host and"
                " 4.0 GB of the device free",
            ],
        ),
        (
            fleet_of(steered=SteeredCount("heavy", 9, 12.4, 12)),
            ["monitor   heavy: 9 workers wanted, 12.4 after damping, 12 planned"],
        ),
        (
            fleet_of(deferrals=(FOLLOWED,)),
            ["deferral  light>heavy: 65% of images have a confidence up to 0.50, 40% as measured"],
        ),
        (
            fleet_of(UNPLANNED, unplanned=(UnplannedModel("heavy", "cpu", "PROFILE_MISSING"),)),
            [
                "plan      7.2 by resident, 0 workers assigned",
                "note      joint cannot plan (heavy has no profile)",
                "unplanned heavy on cpu: PROFILE_MISSING; measure it with `pentimento profile cost heavy`,"
                " then `pentimento up … --profiles heavy-cost.json`",
            ],
        ),
        (fleet_of(HOLDING), ["holds     c1: canny", "holds     c2: canny, depth", "holds     w1: ink, neon"]),
        (
            GetStatusResponse(models=[TURBO], rejected_adapters=[LOHA], image_device_s=80.0, shadow_device_s=2.0),
            [
                "model     sdxl-turbo: 1 steps, guidance 0, 512 x 512 by default",
                "LoRA      loha fits no model here: loha.safetensors: it is a LoHa (UNSUPPORTED_LORA)",
                "shadows   2.0 device seconds, 2.5% of the images'",
            ],
        ),
        (
            REFUSING,
            [
                "requests  0 accepted, 0 completed, 0 failed, 0 cancelled, 5 rejected (2 QUEUE_FULL, 3 STORE_FULL), 0"
                " retried",
                "requests  none is accepted now: STORE_FULL: ledger is full: no room",
            ],
        ),
        (
            CACHE,
            [
                "cache     3 entries, 0.0 MB, 0 lookups, hits none yet, 2 lookups met a hole and lost 25 steps,"
                " 3 of 5 thresholds earned, 81 trials since",
                "predictor on: it gains; a search takes 100.0 ms, an image 0.87 s; 30 searches skipped, +1.50 s gained",
            ],
        ),
        (
            GetStatisticsResponse(match_predictor=MatchPredictor(reason="by the settings")),
            ["predictor off: by the settings"],
        ),
    ],
)
def test_status_shows_reports_of_processes(shown: Any, lines: list[str]) -> None:
    part = {Fleet: "fleet", GetStatusResponse: "frontdoor", GetStatisticsResponse: "cache"}[type(shown)]

    found = lines_of(**{part: shown})

    topics = {line[:10] for line in lines}
    assert [line for line in found if line[:10] in topics] == lines


def test_how_the_allocation_moved_is_a_line_a_model_and_stage() -> None:
    before = AllocationSample(0.0, "7.1", workers={"heavy": 2}, accepted_count=4)
    after = AllocationSample(
        1.0, "7.2", "diffserve", 0.5, {"heavy": 1, "light": 1}, {"light>heavy light": 0.6}, 8, 6, 0, 4
    )

    lines = [text.plain for text in movement((before, after))]

    assert lines == [
        "workers   █▅ 1 heavy",
        "workers   ▁▅ 1 light",
        "threshold  ▅ 0.60 light → heavy, at light",
        "admission █▅ 50%",
        "violated  ▅ 50%",
    ]
    assert list(movement(())) == []


def test_processes_and_kinds_stand_on_one_line_in_a_narrow_terminal() -> None:
    models = tuple(f"a-lora-with-a-long-name-{number}" for number in range(3))
    replica = Replica("gateway", ReplicaKind.VECTORDB_GATEWAY, "unix:/x", 1, resident_models=models)
    console = Console(width=80, record=True)
    console.print(fleet_table(Fleet((ReplicaStatus(replica, 0, live=True),), Plan(PlanVersion(7, 2)), 7)))

    assert " vectordb_gateway " in console.export_text()


def test_late_answers_of_all_pools_are_counted() -> None:
    pools = [PoolStatus(pool="heavy", late_count=2), PoolStatus(pool="light", late_count=3)]
    frontdoor = GetStatusResponse(accepted_count=9, completed_count=8, failed_count=1, pools=pools)

    sample = sample_of(SuiteStatus.of(Fleet((), Plan(PlanVersion(7, 2)), 7), frontdoor, None), 1.0)

    assert sample is not None
    assert (sample.late_count, sample.violated_count) == (5, 6)


def test_look_without_controller_is_no_sample() -> None:
    gone = Unavailable("GONE", "no")
    fleet = Fleet((), Plan(PlanVersion(7, 2), admission_rate=0.5), 7)

    assert sample_of(SuiteStatus.of(gone, gone, None), 1.0) is None
    assert sample_of(SuiteStatus.of(fleet, gone, None), 1.0) == AllocationSample(1.0, "7.2", "", 0.5)


def test_status_of_one_address_without_suite_asks_it_alone(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nobody"

    done = CliRunner().invoke(status.status, ["--frontdoor-address", address, "--state-dir", str(tmp_path / "state")])

    assert done.exit_code == 1
    assert "frontdoor does not answer" in done.output
    assert "controller" not in done.output and "gateway" not in done.output


def test_status_shows_last_answer_with_age_of_silent_process() -> None:
    replica = Replica("worker-7", ReplicaKind.UNET_WORKER, "unix:/x", 1)
    fleet = Fleet((ReplicaStatus(replica, 0, live=True),), Plan(PlanVersion(7, 2)), 7)
    frontdoor, gone = GetStatusResponse(accepted_count=9), Unavailable("GONE", "no")
    told = LastTold()

    shown = []
    for at_s, look in (
        (1.0, SuiteStatus.of(fleet, frontdoor, gone)),
        (4.0, SuiteStatus.of(gone, frontdoor, gone)),
        (5.0, SuiteStatus.of(fleet, frontdoor, gone)),
    ):
        console = Console(width=120, record=True)
        console.print(*render(*told.filled(look, at_s)))
        shown.append(console.export_text())

    assert all("worker-7" in text and "9 accepted" in text for text in shown)
    assert "controller does not answer: no; its last report is 3 s old" in shown[1]
    assert "controller does not answer" not in shown[2]
    assert all("gateway does not answer: no\n" in text for text in shown)


def test_watch_continues_without_answer_and_shows_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = Unavailable("GONE", "nobody is there")
    replica = ReplicaStatus(Replica("worker-7", ReplicaKind.UNET_WORKER, "unix:/x", 1), 0, live=True)
    fleet = Fleet((replica,), Plan(PlanVersion(7, 2)), 7)
    looks, clock = iter([SuiteStatus.of(fleet, gone, None), SuiteStatus.of(gone, gone, None)]), SetClock()

    async def look(*places: object) -> SuiteStatus:
        found = next(looks, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    async def sleep(seconds: float) -> None:
        clock.monotonic_s += 3.0

    monkeypatch.setattr(status, "look", look)
    monkeypatch.setattr(status, "time", clock)
    monkeypatch.setattr(status, "asyncio", SimpleNamespace(run=asyncio.run, sleep=sleep))
    addresses = [f"--{name}-address=unix:/nobody" for name in ("controller", "frontdoor", "gateway")]

    done = CliRunner().invoke(status.status, [*addresses, "--watch"])

    assert "worker-7" in done.stdout
    assert "controller does not answer: nobody is there; its last report is 3 s old" in done.stdout
    assert "frontdoor does not answer: nobody is there\n" in done.stdout
