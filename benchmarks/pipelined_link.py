"""Compare an image's latency over a slow link in both modes, on paced devices: real processes and streams, with compute
that sleeps for the times of a pace.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.suites.slow_link import slow_link
from lab.emulation.pace import DevicePace, PassTimes, read_pace
from lab.fixtures.controlled_generation import ControlledCase, conditions_for
from lab.fixtures.controlnet_serving import (
    PACED,
    ControlledByService,
    ServedControlNet,
    replica_process,
    serving_together,
    shared_folder,
)
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.worker_process import START_S, worker_process
from lab.runs.machine import ROOT
from lab.runs.measure import Figure, at_least, drawn_orders, informative, measured
from lab.runs.parts import PartResult
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.generation import ControlNetSelection, Scheduler

H800 = ROOT / "scenarios" / "paces" / "sdxl-h800.toml"
GBIT_PER_S = 10.0
# residuals of a row in half precision (Katz, section 5, has 108 MiB for two)
RESIDUAL_BYTES = 53.7e6
MODES = {"synchronous": 0, "pipelined": 1}


@dataclass(frozen=True)
class LinkCase:
    """Describe a device `slower` than the pace's, over a link of 10 Gb/s.

    Both are stretched in time by one factor, so that this machine's copying is small compared with the emulated times.
    """

    name: str
    slower: float
    stretch: float

    @property
    def time_factor(self) -> float:
        """Return the factor for the pace's times."""
        return self.slower * self.stretch


@dataclass(frozen=True)
class LinkSetting:
    """Set `steps` of an image; the first `synchronous_steps` are synchronous in either mode."""

    rounds: int
    steps: int
    synchronous_steps: int


# Katz's link has an A10G at both ends (figure 10), with about an eighth of an H800's half-precision rate. An H800's
# step is shorter than the link's time for its residuals, so that no mode reaches the ideal there.
CASES = (LinkCase("A10G", 8.0, 4.0), LinkCase("H800", 1.0, 16.0))


def link_part(setting: LinkSetting) -> PartResult:
    """Run both modes alternating, and compare them with the ideal."""
    figures: list[Figure] = []
    for case in CASES:
        figures += _figures(case, setting, asyncio.run(_measured(case, setting)))
    return PartResult(figures, {"pace": H800.name, "gbit_per_s": GBIT_PER_S})


def ideal_s(pace: DevicePace, case: LinkCase, steps: int) -> float:
    """Return the seconds of all steps by Katz's ideal: a ControlNet during the first half, and no transport."""
    encode, decode, control = (one.of(1) for one in (pace.encode, pace.decode, pace.controlnets[0].step))
    return steps * (max(encode, control) + decode) * case.time_factor


def _figures(case: LinkCase, setting: LinkSetting, seconds: dict[str, list[float]]) -> Iterator[Figure]:
    pace = read_pace(H800)
    ideal = ideal_s(pace, case, setting.steps)
    reached = {mode: [ideal / taken for taken in found] for mode, found in seconds.items()}
    bound = at_least(0.9, "of ideal") if case.name == "A10G" else informative("of ideal")
    yield measured(f"link: {case.name}, pipelined", reached["pipelined"], median, bound)
    yield measured(f"link: {case.name}, synchronous", reached["synchronous"], median, informative("of ideal"))
    encode, decode, control = (one.of(1) for one in (pace.encode, pace.decode, pace.controlnets[0].step))
    serial = (max(encode, control) + decode) / (control + encode + decode)
    yield Figure(f"link: {case.name}, without parallelism", round(serial, 4), informative("of ideal"))
    transfer_s = RESIDUAL_BYTES * 8 / (GBIT_PER_S * 1e9) * case.stretch
    most = min(1.0, ideal / setting.steps / transfer_s)
    yield Figure(f"link: {case.name}, most that the link allows", round(most, 4), informative("of ideal"))


async def _measured(case: LinkCase, setting: LinkSetting) -> dict[str, list[float]]:
    """Return seconds of denoising by mode and round, after one warm-up image."""
    with ExitStack() as stack:
        folder = stack.enter_context(shared_folder())
        path = folder / "pace.toml"
        path.write_text(_stretched(case))
        replica = stack.enter_context(replica_process(folder, "c", PACED, "--controlnets", str(path)))
        link = stack.enter_context(_link(replica, GBIT_PER_S / case.stretch))
        worker = stack.enter_context(
            worker_process(path, "--shared-memory-dir", "", module="lab.emulation.paced_worker")
        )
        served = ServedControlNet(ControlNetSelection(read_pace(path).controlnets[0].name, b""), link)
        async with serving_together(worker, [served]) as together:
            await _denoise_s(together, LinkSetting(1, 2, 1), 0)
            found: dict[str, list[float]] = {mode: [] for mode in MODES}
            for modes in drawn_orders(MODES, setting.rounds):
                for mode in modes:
                    first = setting.synchronous_steps * MODES[mode]
                    found[mode].append(await _denoise_s(together, setting, first))
                    print(f"{case.name}, {mode}: {found[mode][-1]:.2f} s", flush=True)
    return found


async def _denoise_s(served: ControlledByService, setting: LinkSetting, pipelined_from: int) -> float:
    case = Case("anything", "", Scheduler.DDIM, 1, setting.steps, 1.0)
    pace = read_pace(H800)
    result = await served.painted(
        ControlledCase(case, (ControlSetting(),), pipelined_from), conditions_for(1, pace.width_px, pace.height_px)
    )
    (denoise,) = (timing for timing in result.timings if timing.stage == "denoise")
    return float(denoise.duration_ms) / 1e3


@contextmanager
def _link(replica: str, gbit_per_s: float) -> Iterator[str]:
    """Run a link to the replica, once it listens, and yield its address."""
    give_up_at = time.monotonic() + START_S
    while not Path(replica.removeprefix("unix:")).exists():
        if time.monotonic() > give_up_at:
            raise TimeoutError("the paced replica did not start")
        time.sleep(0.1)
    with slow_link(replica, gbit_per_s) as address:
        yield address


def _stretched(case: LinkCase) -> str:
    """Return the pace's file with its times multiplied, and one ControlNet that loads immediately."""
    pace = read_pace(H800)

    def times(name: str, one: PassTimes) -> str:
        return f"{name} = {{ 1 = {one.of(1) * case.time_factor * 1e3} }}"

    lines = [
        f'name = "{pace.name}"',
        f'family = "{pace.family}"',
        f"steps = {pace.steps}",
        f"guidance_scale = {pace.guidance_scale}",
        f"width_px = {pace.width_px}",
        f"height_px = {pace.height_px}",
        f"text_width = {pace.text_width}",
        f"pooled_width = {pace.pooled_width}",
        f"block_channels = {list(pace.block_channels)}",
        times("encode_ms", pace.encode),
        times("decode_ms", pace.decode),
        "[[controlnets]]",
        f'name = "{pace.controlnets[0].name}"',
        times("step_ms", pace.controlnets[0].step),
    ]
    return "\n".join(lines) + "\n"
