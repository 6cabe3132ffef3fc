"""Compare an image's latency over a slow link in both modes, on paced devices: a whole suite with its ControlNet in
another network namespace, and compute that sleeps for the times of a pace.

One frontdoor has the default settings, so that it finds the bounds in its profiles and enables the pipelined mode
itself once images waited; another one never does. Both use the same worker and ControlNet.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from statistics import median

import torch

from benchmarks.suites.limited_link import limited_link
from benchmarks.suites.paced import PacedSuite, await_live, paced_suite
from lab.emulation.pace import DevicePace, PassTimes, read_pace
from lab.emulation.paced_controlnets.wiring import paced_controlnet_digest
from lab.emulation.paced_worker.model import PacedModel
from lab.emulation.png_text import flat_png
from lab.fixtures.controlnet_serving import shared_folder
from lab.runs.machine import ROOT
from lab.runs.measure import Figure, at_least, drawn_orders, informative, measured, share
from lab.runs.parts import PartResult
from pentimento.domain.adapters import AdapterKind
from pentimento.domain.image_request import AskedControlNet, CacheMode, ImageRequest
from pentimento.profiles.document import (
    MeasuredAdapter,
    Profile,
    ProfileConditions,
    ProfiledModel,
    ProfileKind,
    ProfileRow,
    profiles_to_json,
)
from pentimento.sdk import AsyncClient

H800 = ROOT / "scenarios" / "paces" / "sdxl-h800.toml"
GBIT_PER_S = 10.0
# residuals of a row in half precision (Katz, section 5, has 108 MiB for two)
RESIDUAL_BYTES = 53.7e6
# Frontdoors by their pipelining.
AUTO, OFF = "auto", "off"
WARM_UP_STEPS = 8
DEADLINE_MS = 1_200_000
# Worker, ControlNet replica and two frontdoors.
MEMBER_COUNT = 4
LEAST_SHARE = 0.9


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
CASES = (LinkCase("A10G", 8.0, 2.0), LinkCase("H800", 1.0, 16.0))


def link_part(setting: LinkSetting) -> PartResult:
    """Generate with both frontdoors alternating, and compare them with the ideal. Raises NotFound without root."""
    figures: list[Figure] = []
    for case in CASES:
        figures += _figures(case, setting, asyncio.run(_measured(case, setting)))
    return PartResult(
        figures, {"pace": H800.name, "gbit_per_s": GBIT_PER_S, "stretch": {one.name: one.stretch for one in CASES}}
    )


def ideal_s(pace: DevicePace, case: LinkCase, steps: int) -> float:
    """Return the seconds of all steps by Katz's ideal: a ControlNet during the first half, and no transport."""
    encode, decode, control = (one.of(1) for one in (pace.encode, pace.decode, pace.controlnets[0].step))
    return steps * (max(encode, control) + decode) * case.time_factor


@dataclass(frozen=True)
class LinkImage:
    """Store an image's seconds of denoising, and its first pipelined step, 0 for a synchronous image."""

    seconds: float
    pipelined_from: int


Images = dict[str, list[LinkImage]]


def _figures(case: LinkCase, setting: LinkSetting, images: Images) -> Iterator[Figure]:
    pace = read_pace(H800)
    ideal = ideal_s(pace, case, setting.steps)
    reached = {mode: [ideal / image.seconds for image in found] for mode, found in images.items()}
    encode, decode, control = (one.of(1) for one in (pace.encode, pace.decode, pace.controlnets[0].step))
    transfer_s = RESIDUAL_BYTES * 8 / (GBIT_PER_S * 1e9) * case.stretch
    most = min(1.0, ideal / setting.steps / transfer_s)
    shares = [reach / most for reach in reached[AUTO]]
    yield measured(f"link: {case.name}, default settings ÷ most", shares, median, at_least(LEAST_SHARE))
    enabled = sum(image.pipelined_from == setting.synchronous_steps for image in images[AUTO])
    yield share(f"link: {case.name}, images pipelined by default", enabled, len(images[AUTO]), informative())
    for mode, name in ((AUTO, "default settings"), (OFF, "pipelining off")):
        yield measured(f"link: {case.name}, {name}", reached[mode], median, informative("of ideal"))
    serial = (max(encode, control) + decode) / (control + encode + decode)
    yield Figure(f"link: {case.name}, without parallelism", round(serial, 4), informative("of ideal"))
    yield Figure(f"link: {case.name}, most that the link allows", round(most, 4), informative("of ideal"))


async def _measured(case: LinkCase, setting: LinkSetting) -> Images:
    """Return images by frontdoor, after one short image each, which says how long images wait."""
    with ExitStack() as stack:
        folder = stack.enter_context(shared_folder())
        path, profile = folder / "pace.toml", folder / "pipelining.json"
        path.write_text(_stretched(case))
        profile.write_text(_profile(read_pace(path), setting))
        link = stack.enter_context(limited_link(GBIT_PER_S / case.stretch))
        frontdoors = {AUTO: ("--profiles", str(profile)), OFF: ("--controlnet-pipelining", "off")}
        name = read_pace(path).controlnets[0].name
        suite = stack.enter_context(paced_suite(path, 1, 1, (name,), link=link, frontdoors=frontdoors))
        return await _images(suite, case, setting, name)


async def _images(suite: PacedSuite, case: LinkCase, setting: LinkSetting, controlnet: str) -> Images:
    pace = read_pace(H800)
    conditions = AskedControlNet(controlnet, flat_png(pace.width_px, pace.height_px, (90, 120, 150)))
    request = ImageRequest("anything", seed=1, cache=CacheMode.OFF, deadline_ms=DEADLINE_MS, controlnets=(conditions,))
    found: Images = {mode: [] for mode in suite.frontdoors}
    async with AsyncExitStack() as stack:
        await await_live(suite, MEMBER_COUNT)
        clients = {
            mode: await stack.enter_async_context(AsyncClient(address)) for mode, address in suite.frontdoors.items()
        }
        for client in clients.values():
            await _image(client, replace(request, num_inference_steps=WARM_UP_STEPS))
        for modes in drawn_orders(clients, setting.rounds):
            for mode in modes:
                found[mode].append(await _image(clients[mode], replace(request, num_inference_steps=setting.steps)))
                print(f"{case.name}, {mode}: {found[mode][-1]}", flush=True)
    return found


async def _image(client: AsyncClient, request: ImageRequest) -> LinkImage:
    provenance = (await client.generate(request)).provenance
    (denoise,) = (timing for timing in provenance.timings if timing.stage == "worker.denoise")
    return LinkImage(denoise.duration_ms / 1e3, provenance.route.pipelined_from_step)


def _profile(pace: DevicePace, setting: LinkSetting) -> str:
    """Return the profile of the pace's model with its ControlNet, found by both digests."""
    controlnet = pace.controlnets[0]
    digest = paced_controlnet_digest(controlnet)
    of = MeasuredAdapter(digest, 1.0, AdapterKind.CONTROLNET, name=controlnet.name)
    model_digest = PacedModel(pace, torch.float16).info.model_digest
    row = ProfileRow({"step_count": setting.steps, "first_step": setting.synchronous_steps})
    model = ProfiledModel(pace.name, model_digest, adapters=(of,))
    return profiles_to_json(Profile(ProfileKind.PIPELINING, model, ProfileConditions(setting.steps), rows=(row,)))


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
