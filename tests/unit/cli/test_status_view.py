"""Test the output of `pentimento status`."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console, Group
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
from pentimento.cli.status_view import LastTold, fleet_table, frontdoor_lines, movement, render, sample_of
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


def test_notes_of_plan_are_shown() -> None:
    plan = Plan(PlanVersion(7, 1), notes=("light images of turbo are worth 0.84",))
    status = SuiteStatus.of(Fleet((), plan, 7), Unavailable("GONE", "no"), None)

    assert "note      light images of turbo are worth 0.84" in [getattr(line, "plain", "") for line in render(status)]


def test_status_shows_weights_and_models_without_room() -> None:
    weights = (
        ComponentWeights("unet", "int8", 2_600_000_000),
        ComponentWeights("vae", "float16", 167_000_000),
        ComponentWeights("text_encoder", "float16", 246_000_000, in_host_memory=True),
    )
    short = (ShortModel("flux", 23_800_000_000, 21_600_000_000),)
    change = ModelChange("sdxl", SwitchWay.UNLOAD_FIRST, 6_900_000_000, 1_000_000_000, 4_000_000_000)
    replica = Replica("w1", ReplicaKind.UNET_WORKER, "unix:/x", 1, weights=weights, short_models=short, change=change)
    fleet = Fleet((ReplicaStatus(replica, 0, live=True),), Plan(PlanVersion(7, 1)), 7)
    lines = [getattr(line, "plain", "") for line in render(SuiteStatus.of(fleet, None, None))]

    text = "text_encoder 246 MB float16 in host memory"
    assert f"weights   w1: 2.77 GB (unet 2,600 MB int8, vae 167 MB float16, {text})" in lines
    assert "memory    w1: flux needs 23.8 GB for its weights, 21.6 GB of the device are this worker's" in lines
    assert (
        "switch    w1: sdxl was read after the former model had left: 6.9 GB of weights, 1.0 GB of the host and 4.0 GB "
        "of the device free"
    ) in lines


def test_steered_workers_are_shown() -> None:
    fleet = Fleet((), Plan(PlanVersion(7, 1)), 7, steered=SteeredCount("heavy", 9, 12.4, 12))
    lines = [getattr(line, "plain", "") for line in render(SuiteStatus.of(fleet, None, None))]

    assert "monitor   heavy: 9 workers wanted, 12.4 after damping, 12 planned" in lines


def test_followed_deferral_is_shown_where_it_differs_most() -> None:
    followed = FollowedDeferral("light>heavy", (0.25, 0.5, 1.0), (0.3, 0.65, 1.0), (0.2, 0.4, 1.0))
    fleet = Fleet((), Plan(PlanVersion(7, 1)), 7, deferrals=(followed,))
    lines = [getattr(line, "plain", "") for line in render(SuiteStatus.of(fleet, None, None))]

    assert "deferral  light>heavy: 65% of images have a confidence up to 0.50, 40% as measured" in lines


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


def test_status_shows_steps_and_guidance_of_each_model() -> None:
    turbo = Model(
        name="sdxl-turbo", default_steps=1, default_guidance_scale=0.0, default_width_px=512, default_height_px=512
    )
    status = SuiteStatus(None, GetStatusResponse(models=[turbo]), None, {})

    lines = [line.plain for line in render(status) if isinstance(line, Text)]

    assert lines[0] == "model     sdxl-turbo: 1 steps, guidance 0, 512 x 512 by default"


def test_status_shows_loras_that_fit_no_model() -> None:
    loha = RejectedAdapter(name="loha", reason="UNSUPPORTED_LORA", message="loha.safetensors: it is a LoHa")
    status = SuiteStatus(None, GetStatusResponse(rejected_adapters=[loha]), None, {})

    lines = [line.plain for line in render(status) if isinstance(line, Text)]

    assert "LoRA      loha fits no model here: loha.safetensors: it is a LoHa (UNSUPPORTED_LORA)" in lines


def test_late_answers_of_all_pools_are_counted() -> None:
    pools = [PoolStatus(pool="heavy", late_count=2), PoolStatus(pool="light", late_count=3)]
    frontdoor = GetStatusResponse(accepted_count=9, completed_count=8, failed_count=1, pools=pools)

    sample = sample_of(SuiteStatus.of(Fleet((), Plan(PlanVersion(7, 2)), 7), frontdoor, None), 1.0)

    assert sample is not None
    assert (sample.late_count, sample.violated_count) == (5, 6)


def test_status_shows_rejections_by_reason_and_why_none_is_accepted() -> None:
    rejections = [
        RejectionCount(reason="QUEUE_FULL", request_count=2),
        RejectionCount(reason="STORE_FULL", request_count=3),
    ]
    frontdoor = GetStatusResponse(
        rejected_count=5, rejections=rejections, not_accepting_reason="STORE_FULL: ledger is full: no room"
    )

    lines = [line.plain for line in frontdoor_lines(frontdoor)]

    assert lines == [
        "requests  0 accepted, 0 completed, 0 failed, 0 cancelled, 5 rejected (2 QUEUE_FULL, 3 STORE_FULL), 0 retried",
        "requests  none is accepted now: STORE_FULL: ledger is full: no room",
    ]


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


@pytest.mark.parametrize(
    ("predictor", "line"),
    [
        (MatchPredictor(reason="by the settings"), "predictor off: by the settings"),
        (
            MatchPredictor(on=True, reason="it gains", search_s=0.1, image_s=0.87, net_s=1.5, skipped_count=30),
            "predictor on: it gains; a search takes 100.0 ms, an image 0.87 s; 30 searches skipped, +1.50 s gained",
        ),
    ],
)
def test_status_says_why_predictor_is_on_or_off(predictor: MatchPredictor, line: str) -> None:
    gone, console = Unavailable("GONE", "no"), Console(width=200, record=True)
    holes = {"hole_count": 2, "hole_step_count": 25}
    earned = EarnedCells(row_count=5, open_count=3, trial_count=81)
    cache = GetStatisticsResponse(entry_count=3, **holes, match_predictor=predictor, earned=earned)
    frontdoor = GetStatusResponse(image_device_s=80.0, shadow_device_s=2.0)

    console.print(Group(*render(SuiteStatus.of(gone, frontdoor, cache))))

    lines = [one.strip() for one in console.export_text().splitlines()]
    assert line in lines
    told = "hits none yet, 2 lookups met a hole and lost 25 steps, 3 of 5 thresholds earned, 81 trials since"
    assert any(one.endswith(told) for one in lines)
    assert "shadows   2.0 device seconds, 2.5% of the images'" in lines


def test_status_shows_why_policy_does_not_plan() -> None:
    plan = Plan(PlanVersion(7, 2), allocator="resident", notes=("joint cannot plan (heavy has no profile)",))
    unplanned = (UnplannedModel("heavy", "cpu", "PROFILE_MISSING"),)
    gone = Unavailable("GONE", "no")
    console = Console(width=200, record=True)

    console.print(Group(*render(SuiteStatus.of(Fleet((), plan, 7, unplanned), gone, None))))

    lines = [line.strip() for line in console.export_text().splitlines()]
    assert "plan      7.2 by resident, 0 workers assigned" in lines
    assert "note      joint cannot plan (heavy has no profile)" in lines
    assert (
        "unplanned heavy on cpu: PROFILE_MISSING; measure it with `pentimento profile cost heavy`,"
        " then `pentimento up … --profiles heavy-cost.json`" in lines
    )


def test_status_names_the_components_that_each_replica_is_to_hold() -> None:
    plan = Plan(
        PlanVersion(7, 1),
        (WorkerAssignment("w1", "", "m", 1, prefetch=("ink", "neon")), WorkerAssignment("w2", "", "m", 1)),
        components=(
            ComponentPlacement(ReplicaKind.CONTROLNET, "canny", ("c1", "c2")),
            ComponentPlacement(ReplicaKind.CONTROLNET, "depth", ("c2",)),
        ),
    )
    lines = [getattr(line, "plain", "") for line in render(SuiteStatus.of(Fleet((), plan, 7), None, None))]

    assert [line for line in lines if line.startswith("holds")] == [
        "holds     c1: canny",
        "holds     c2: canny, depth",
        "holds     w1: ink, neon",
    ]
