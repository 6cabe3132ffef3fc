"""Test the arithmetic of single benchmarks with known numbers."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from benchmarks.adapter_load import DEVICES, LOAD, SDXL, STEPS, LoadedRequest, LoadedRound, workload_of, worth_s
from benchmarks.control_overlap import Blocks, _timed
from benchmarks.end_sides import HEAVY, LORAS, LogRow, SideRun, folded, peer_order
from benchmarks.energy import BUSY, JOINT, NIRVANA, SANA, SWAMPED, VANILLA, SpentSeconds, accounted, loaded, systems
from benchmarks.energy import SDXL as MODM_SDXL
from benchmarks.energy import figures_of as energy_figures
from benchmarks.engine_preempt import DEADLINE_MS
from benchmarks.engine_preempt import figures_of as preempt_figures
from benchmarks.joint import carried, margin
from benchmarks.lora_async import LateImage, LoadRound, beyond, latency_figures
from benchmarks.lora_sharing import BOUND, SharingBlock, extra_hits, extra_steps, lora_starts
from benchmarks.modm_live import CarriedLoad, late_shares, throughput
from benchmarks.monitor import carried_shares
from benchmarks.monitor_live import off_by
from benchmarks.overhead import DIFFUSERS, ENGINE, MODES, SERVICES, TimedRound, pixel_difference
from benchmarks.overhead import figures_of as overhead_figures
from benchmarks.overload import fairness_figure, goodput_figures
from benchmarks.papers.systems import correlation_of, own_deviation
from benchmarks.slo_trace import CASCADE, SYSTEMS, TraceRun, dominates, scenario_of, static_capacity_per_s
from benchmarks.slo_trace import figures_of as trace_figures
from benchmarks.suites.mixture import PlayedRun, answered_counts
from benchmarks.worker_load import Answer, StreamOutcome, WorkerArrival, latency_quantile
from lab.emulation.pace import read_pace
from lab.fixtures.spans import Span
from lab.runs import Outcome, RequestRecord
from lab.runs.measure import Figure
from lab.workloads.production import Choice
from pentimento.domain.fleet import Fleet, Plan, PoolPlan, SteeredCount, WorkerAssignment
from pentimento.policies.plan.inputs import UNNUMBERED
from pentimento.policies.plan.mixture import HITS
from pentimento.policies.plan.settings import MixtureMode
from zoo.registry import entry_of

PLAIN = Choice("u", "base-000", (), ())
ADAPTED = Choice("u", "base-000", ("lora-000", "lora-001"), ("controlnet-000", "controlnet-007"))
PACE = read_pace(SDXL)
ANSWERED, FAILED = LoadedRequest(1.0, 11.0, 8.0, "completed"), LoadedRequest(3.0, 5.0, 8.0, "failed")
ADAPTERS_S = PACE.patch_s + 2 * STEPS * PACE.controlnets[0].step.of(1)


def load_of_workload(choice: Choice) -> float:
    workload = workload_of([choice] * 4, PACE, [1.0, 2.0, 0.5, 0.5], 1)
    return 4 * worth_s(PACE, choice) / workload.duration_s


def span(what: str, began_ms: float, length_ms: float, process_id: int = 1) -> Span:
    return Span(what, process_id, began_ms / 1e3, (began_ms + length_ms) / 1e3, 2)


WORKER = [span(what, step * 30.0 + at, 10.0) for step in range(3) for what, at in (("encode", 0.0), ("decode", 14.0))]
# The first pass reports the residuals' shapes, before the first step.
CONTROL = [span("residuals", -40.0, 90.0, 2), *(span("residuals", step * 30.0, 12.0, 2) for step in range(3))]
SLOWER = [span("residuals", step * 30.0, 15.0, 3) for step in range(3)]
DELIVERING = [span("deliver", step * 30.0 + 4.0, 3.0, 2) for step in range(3)]
OVERLAPPED = _timed(3, 1, 0.120, WORKER, [CONTROL])


def late_round(load_steps: float, latency_steps: float, steps: int = 10) -> LoadRound:
    """Return a round with steps of a tenth of a second, and a load and an image of that many steps."""
    return LoadRound((steps + 1) * 0.1, {1.0: LateImage(latency_steps * 0.1, load_steps * 0.1)})


LATE = {0.2: 11.0, 0.5: 11.0, 1.0: 12.0, 1.5: 16.0, 2.0: 21.0, 3.0: 31.0}
LATE_ROUND = LoadRound(1.1, {share: LateImage(steps * 0.1, share) for share, steps in LATE.items()})


def asking(*loras: str, model: str = "base") -> Choice:
    return Choice("somebody", model, loras, ())


def saved(choices: Sequence[Choice], patched_after: int, cosine: float = 1.0) -> list[int]:
    """Return the steps saved in a log of unit vectors with this cosine between any two."""
    common, own = np.sqrt(cosine), np.sqrt(1.0 - cosine)
    vectors = np.concatenate([np.full((len(choices), 1), common), own * np.eye(len(choices))], axis=1)
    return [start.saved_steps for start in lora_starts(vectors.astype(np.float32), choices, patched_after)]


def record(at_s: float, start_step: int, outcome: Outcome = Outcome.COMPLETED) -> RequestRecord:
    return RequestRecord(f"{at_s}", "", "", "", at_s, 100.0, at_s + 1.0, outcome, start_step=start_step)


HALF_HITS = [record(number, start) for number in range(10) for start in (0, 25)]
REJECTED = [record(0.0, 0), *(record(1.0, 0, Outcome.REJECTED) for _ in range(9))]

CARRIED = CarriedLoad("", "", (6, 10, 14), 0.0, {2: (0.0, 0.05, 0.06), 4: (0.06, 0.0, 0.0)}, 0.0, 0.0, 0.0, 0)


def fleet_of(large_count: int, small: str) -> Fleet:
    """Return a fleet of sixteen devices, the first `large_count` with the large model."""
    models = ["sd35-large"] * large_count + [small] * (16 - large_count)
    assignments = tuple(WorkerAssignment(f"w{number}", "", model, 0, 1) for number, model in enumerate(models))
    plan = Plan(UNNUMBERED, assignments, (PoolPlan(small, small, (), routes=HITS),))
    return Fleet((), plan, 1, steered=SteeredCount("sd35-large", large_count, large_count, large_count))


# Ten misses and ten hits of half a run in ten seconds are 3 and 1.5 runs a minute of the paper's, which sixteen large
# devices carry; by Eq. 11 they are 15 of sixteen.
HALF_OF_TEN = [record(number, start) for number in range(10) for start in (0, 5)]
SEEN = PlayedRun(HALF_OF_TEN, [(1.0, fleet_of(16, "sdxl")), (6.0, fleet_of(12, "sdxl")), (8.0, fleet_of(11, "sana"))])

ROUND = [(0.8, 8.0), (0.9, 10.0), (1.0, 9.0), (2.0, 10.0), (5.0, 9.5)]
WORSE = [(0.8, 8.0), (0.9, 9.0), (1.0, 20.0), (2.0, 10.0), (5.0, 19.0)]


def outcome(short_s: float, error: str = "") -> StreamOutcome:
    short = [Answer(WorkerArrival(number, 0.0, 40, DEADLINE_MS), short_s, short_s, error) for number in range(2)]
    return StreamOutcome((*short, Answer(WorkerArrival(100, 0.0, 0), 5.0, 5.0)), 10.0)


LOST = outcome(math.inf, "Unavailable: gone")
SPENT = SpentSeconds("a", 1, 1.0, 0.6, starts={0: 0.4, 25: 0.5, 10: 0.1})
SECONDS = {VANILLA: 100.0, NIRVANA: 80.0, MODM_SDXL: 50.0, SANA: 40.0, JOINT: 42.0}
SPENT_BY_SYSTEM = [SpentSeconds(name, seed, value, 0.5) for seed in (1, 2) for name, value in SECONDS.items()]


def traced(**systems: tuple[float, float]) -> list[TraceRun]:
    """Return two traces of each system with its violations and quality; `_` in a name is a space."""
    found = systems.items()
    return [TraceRun(name.replace("_", " "), trace, *of, 1000) for name, of in found for trace in ("one", "two")]


def named(figures: Sequence[Figure], part: str) -> tuple[float | None, bool]:
    (found,) = (figure for figure in figures if part in figure.name)
    return found.value, found.ok


TRACED = traced(proteus=(0.01, 0.97), joint=(0.02, 0.96))
TOOK_MS = {
    **{("compiled", side): ms for side, ms in ((SERVICES, 110.0), (ENGINE, 100.0), (DIFFUSERS, 220.0))},
    **{("eager", side): ms for side, ms in ((SERVICES, 330.0), (ENGINE, 300.0), (DIFFUSERS, 330.0))},
}
OVERHEAD = list(overhead_figures([TimedRound(TOOK_MS, dict.fromkeys(MODES, 1))] * 3))
PIXELS = bytes([10, 20, 30, 40, 50, 60])
UNANSWERED = {row: float(row + 1) if row < 94 else math.inf for row in range(100)}


def png(pixels: bytes) -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", (2, 1), pixels).save(file, "PNG")
    return file.getvalue()


CASES: dict[str, tuple[Callable[[], object], object]] = {
    "adapter_load: throughput without unanswered": (
        lambda: LoadedRound((ANSWERED, FAILED)).throughput,
        8.0 / 10.0 / DEVICES,
    ),
    "adapter_load: worth of adapters": (lambda: worth_s(PACE, ADAPTED) - worth_s(PACE, PLAIN), ADAPTERS_S),
    "adapter_load: load with and without": (
        lambda: [load_of_workload(choice) for choice in (PLAIN, ADAPTED)],
        [LOAD * DEVICES] * 2,
    ),
    "control_overlap: C": (lambda: OVERLAPPED.control_s, 0.012),
    "control_overlap: serial and ideal step": (
        lambda: [OVERLAPPED.serial_step_s, OVERLAPPED.ideal_step_s, OVERLAPPED.steady_s],
        [0.032, 0.022, 0.030],
    ),
    "control_overlap: shares": (
        lambda: [OVERLAPPED.steady_share, OVERLAPPED.share_of_ideal, OVERLAPPED.device_s],
        [22 / 30, 22 / 40, 0.060 + 0.126],
    ),
    "control_overlap: the slowest": (lambda: _timed(3, 2, 0.120, WORKER, [CONTROL, SLOWER]).control_s, 0.015),
    "control_overlap: no writing": (lambda: _timed(3, 1, 0.12, WORKER, [CONTROL + DELIVERING]).control_s, 0.009),
    # 24 blocks of 1 s; after the last of 12 residuals, which follows block 22, comes one more
    "control_overlap: blocks": (
        lambda: [Blocks(24, 12).ideal_s(24.0, control_s) for control_s in (12.0, 18.0, 36.0)],
        [24.0, 24.5, 37.0],
    ),
    "control_overlap: few blocks": (lambda: Blocks(24, 6).ideal_s(24.0, 30.0), 33.0),
    "end_to_end: LoRAs without duplicates": (lambda: folded(("lora-000", "lora-004", "lora-003")), LORAS[:2]),
    "end_to_end: steps of the peer": (
        lambda: peer_order(LogRow(3, "a circle", LORAS[:1])).steps,
        entry_of(HEAVY)["default_steps"],
    ),
    "end_to_end: p95 of six failures": (lambda: SideRun({}, UNANSWERED).p95_s, math.inf),
    "end_to_end: p95 of five failures": (lambda: SideRun({}, UNANSWERED | {94: 95.0}).p95_s, 95.0),
    "energy: steps saved": (lambda: SPENT.saved, 0.27),
    "energy: mean of seeds": (
        lambda: accounted([SPENT, replace(SPENT, seed=2, starts={0: 1.0})])[0].value,
        0.135,
    ),
    "energy: busy load is closed": (
        lambda: [loaded(systems(100)[VANILLA], way).closed_loop for way in (BUSY, SWAMPED)],
        [32, 0],
    ),
    "energy: MoDM reaches its target": (lambda: named(energy_figures(SPENT_BY_SYSTEM, BUSY), "SDXL: dev"), (0.5, True)),
    "energy: NIRVANA misses its": (lambda: named(energy_figures(SPENT_BY_SYSTEM, BUSY), "only: dev"), (0.8, False)),
    "energy: joint beside the best": (
        lambda: named(energy_figures(SPENT_BY_SYSTEM, BUSY), "÷ those of MoDM-only, SANA"),
        (1.05, False),
    ),
    "engine_preempt: ratio of p99": (
        lambda: preempt_figures([{"with": outcome(1.0), "without": outcome(4.0)}] * 3)[0].value,
        0.25,
    ),
    "engine_preempt: failure on either side": (
        lambda: [
            preempt_figures([sides])[0].value
            for sides in ({"with": LOST, "without": outcome(4.0)}, {"with": outcome(1.0), "without": LOST})
        ],
        [None, None],
    ),
    "joint: margin by the nearer bound": (
        lambda: [margin(*of) for of in ((0.05, 0.95), (0.0, 0.975), (0.1, 1.0), (0.0, 0.945))],
        [0.0, 0.5, -1.0, -0.1],
    ),
    # At 1 the mean quality is 0.96, at 2 it is 0.94: half of the way.
    "joint: carried between loads": (
        lambda: carried([[[1.0, 0.0, 0.97], [2.0, 0.0, 0.94]], [[1.0, 0.0, 0.95], [2.0, 0.0, 0.94]]]),
        1.5,
    ),
    "joint: carried below the first load": (lambda: carried([[[1.0, 0.0, 0.9]]]), 0.5),
    "joint: carried at the last load": (lambda: carried([[[1.0, 0.0, 0.97]]]), 1.0),
    "joint: correlation of AUROC 0.5": (lambda: correlation_of(0.5), 0.0),
    "joint: correlation of AUROC 0.84": (lambda: round(correlation_of(0.84), 2), 0.70),
    # A uniform spread of 0.6 has a standard deviation of 0.1732, so that 0.1 remains of 0.2.
    "joint: deviation beside the spread": (lambda: [own_deviation(0.6, 0.2), own_deviation(0.32, 0.05)], [0.1, 0.0]),
    "lora_async: load within K": (lambda: beyond(late_round(8, 11), 1.0, 10), 0.0),
    "lora_async: excess of the load": (
        lambda: [beyond(late_round(15, 16), 1.0, 10), beyond(late_round(20, 23), 1.0, 10)],
        [0.0, 0.1],
    ),
    "lora_async: waits from the start": (lambda: beyond(late_round(5, 16), 1.0, 10), 1.0),
    "lora_async: no K": (lambda: beyond(late_round(5, 6, steps=0), 1.0, 0), 0.0),
    "lora_async: the worst load": (
        lambda: [figure.value for figure in latency_figures("neon", 10, [LATE_ROUND] * 3, 50)][:7],
        [0.1, 1.0, 1.0, 0.9, 2 / 3, 0.5, 1 / 3],
    ),
    "lora_sharing: bound to the same LoRAs": (
        lambda: saved([asking("a"), asking("b"), asking(), asking("a"), asking("b", "a")], BOUND),
        [0, 0, 0, 25, 0],
    ),
    # 25 steps are allowed. The first one's latents up to 10 are shared.
    "lora_sharing: shared before the patch": (
        lambda: saved([asking("a"), asking("b"), asking(), asking("a"), asking("a", model="another")], 10),
        [0, 10, 10, 25, 0],
    ),
    "lora_sharing: by similarity": (
        lambda: [saved([asking("a"), asking("b")], 20, cosine)[1] for cosine in (0.7, 0.5)],
        [5, 0],
    ),
    "lora_sharing: order of LoRAs": (lambda: saved([asking("a", "b"), asking("b", "a")], BOUND), [0, 25]),
    "lora_sharing: points": (
        lambda: [of([SharingBlock(4, 1, 3, 25, 45)]) for of in (extra_hits, extra_steps)],
        [50.0, 10.0],
    ),
    "lora_sharing: nothing": (lambda: extra_hits([]), 0.0),
    # Ten misses are 915 s, ten hits of half a run 32.5 s; sixteen devices have 160 s in ten.
    "monitor: misses by the large model": (lambda: list(carried_shares(HALF_HITS, [0.0, 10.0])), [160.0 / 947.5]),
    "monitor: unanswered as answered": (lambda: list(carried_shares(REJECTED, [0.0, 10.0])), [160.0 / 915.0]),
    "monitor: at most one": (
        lambda: list(carried_shares([record(0.0, 0), record(11.0, 0)], [0.0, 10.0, 30.0])),
        [1.0, 1.0],
    ),
    "modm_live: late by level": (
        lambda: late_shares([*REJECTED[:2], record(12.0, 0)], [0.0, 10.0, 20.0, 30.0], 2.0),
        [0.5, 0.0, 0.0],
    ),
    "modm_live: throughput until nine tenths": (lambda: throughput([*range(11, 20), 90], 10.0), 60.0 * 9 / 90.0),
    "modm_live: highest rate held": (lambda: [CARRIED.held_per_minute(times) for times in (2, 4)], [10, 0]),
    "mixture: answers a large model's time earlier": (
        lambda: np.ravel(answered_counts([record(0.0, 0), record(17.0, 0), *REJECTED[1:2]], [0.0, 5.0, 20.0])),
        [2, 1, 1, 1],
    ),
    "mixture: devices that change": (lambda: SEEN.moves(2.0), [6.0] * 4 + [8.0] * 5),
    "mixture: small models": (lambda: [model for _, model in SEEN.smalls(2.0)], ["sdxl", "sana"]),
    "monitor_live: distance from the equation": (
        lambda: [off_by(SEEN, mode, (0.0, 10.0)) for mode in MixtureMode],
        [(4 + 5) / 2, (3 + 4) / 2],
    ),
    "overhead: compiled, engine": (lambda: named(OVERHEAD, "compiled: services ÷ engine"), (1.1, False)),
    "overhead: compiled, diffusers": (lambda: named(OVERHEAD, "compiled: services ÷ diffusers"), (0.5, True)),
    "overhead: eager, difference": (lambda: named(OVERHEAD, "eager: services - engine"), (30.0, True)),
    "overhead: pixels": (lambda: named(OVERHEAD, "eager: largest pixel"), (1, True)),
    "overhead: pixels of two files": (
        lambda: [
            pixel_difference(png(PIXELS), b"P6 2 1 255\n" + raw) for raw in (PIXELS, bytes([*PIXELS[:4], 53, 60]))
        ],
        [0, 3],
    ),
    "overload: goodput by its round's peak": (
        lambda: [figure.value for figure in goodput_figures([ROUND, WORSE])],
        [(1.0 * 0.5) ** 0.5, 0.95],
    ),
    "overload: zero peak": (
        lambda: [one.value for one in goodput_figures([ROUND, [(share, 0.0) for share, _ in ROUND]])],
        [None, None],
    ),
    "overload: interval of one round": (lambda: [one.interval for one in goodput_figures([ROUND])], [None, None]),
    "overload: the least fair round": (lambda: fairness_figure([0.99, 0.9, 0.97]).value, 0.9),
    "overload: unknown fairness": (lambda: fairness_figure([0.99, math.nan]).value, None),
    # twelve devices in batches of four of 3.68 s; 26 % of the requests are deferred
    "slo_trace: static capacity": (lambda: static_capacity_per_s(CASCADE), 12 * 4 / 3.68 / 0.26),
    "slo_trace: dominates": (
        lambda: [dominates(of, (0.1, 0.9)) for of in ((0.1, 0.9), (0.1, 0.91), (0.05, 0.9), (0.05, 0.89), (0.2, 1.0))],
        [False, True, True, False, False],
    ),
    "slo_trace: dominating systems": (lambda: named(trace_figures(TRACED, "joint"), "dominate"), (1, False)),
    "slo_trace: thinning is ours": (
        lambda: named(trace_figures(traced(joint_thinning=(0.01, 0.97), joint=(0.02, 0.96)), "joint"), "dominate"),
        (0, True),
    ),
    "slo_trace: violations of others": (lambda: named(trace_figures(TRACED, "joint"), "proteus ÷"), (0.5, False)),
    "slo_trace: control": (
        lambda: named(
            trace_figures(traced(diffserve_falling_back=(0.04, 0.9), joint=(0.01, 0.92)), "joint"),
            "violations of joint − of",
        ),
        (-0.03, True),
    ),
    "slo_trace: no violation counts as one": (
        lambda: named(trace_figures([*traced(proteus=(0.5, 1.0), joint=(0.0, 0.9))], "joint"), "proteus ÷"),
        (500.0, True),
    ),
    "slo_trace: systems that fall back": (
        lambda: [system for system in SYSTEMS if scenario_of(system, 60.0).dataplane.fall_back],
        ["diffserve falling back", "joint thinning", "joint"],
    ),
    "worker_load: quantile of failures": (
        lambda: [
            latency_quantile([Answer(WorkerArrival(0, 0.0, 0), s, 0.0) for s in (3.0, 1.0, math.inf, 2.0)], share)
            for share in (0.5, 0.75, 0.76, 1.0)
        ],
        [2.0, 3.0, math.inf, math.inf],
    ),
}


@pytest.mark.parametrize("benchmark", sorted({name.partition(":")[0] for name in CASES}))
def test_arithmetic_gives_known_value(benchmark: str) -> None:
    for name, (found, expected) in CASES.items():
        if name.startswith(f"{benchmark}:"):
            assert found() == pytest.approx(expected), name
