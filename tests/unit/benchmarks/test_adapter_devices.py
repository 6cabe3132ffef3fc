"""Test the comparison of devices with diffusers: device-seconds, ratios, and the zoo's profile."""

from dataclasses import replace

import pytest

from benchmarks.adapter_devices import DeployedKind, OurImage, busy_s, paced_figures
from benchmarks.adapter_latency import SDXL
from benchmarks.adapter_sides import DiffusersImage, ReferenceImage, StepTimes, reference_seconds, zoo_pace
from lab.emulation.pace import read_pace

PACE = replace(read_pace(SDXL), guidance_scale=5.0)
MOST, NONE = DeployedKind(3, 2), DeployedKind(0, 0)


@pytest.mark.parametrize(
    ("kind", "devices", "seconds"),
    [
        (NONE, 2, 2 * 1.51 + 0.1),
        (DeployedKind(0, 0, is_paired=False), 1, 3.02 + 0.1),
        (MOST, 8, 2 * (1.51 + 0.12 + 3 * 0.68) + 0.1),
        (DeployedKind(3, 2, is_paired=False), 4, 3.02 + 0.12 + 3 * 1.36 + 0.1),
    ],
)
def test_kind_counts_its_devices_and_their_computation(kind: DeployedKind, devices: int, seconds: float) -> None:
    assert (kind.devices, busy_s(PACE, kind)) == (devices, pytest.approx(seconds))


def test_paced_figures_divide_diffusers_seconds_by_latency_and_by_devices() -> None:
    images = {NONE: [OurImage(1.6, 1.0)], MOST: [OurImage(2.0, 0.9)]}

    figures = paced_figures(PACE, images, {"0C0L": [2.88], "3C2L": [14.78]}, has_targets=True)

    found = {figure.name: figure.value for figure in figures}
    assert found["sdxl: 3C2L over 0C0L, in pairs"] == pytest.approx(1.25)
    assert found["sdxl: 3C2L on 8: diffusers' latency ÷ ours"] == pytest.approx(7.39)
    assert found["sdxl: 3C2L on 8: images per device-minute ÷ diffusers'"] == pytest.approx(0.92375)
    assert found["sdxl: 3C2L on 8: images per busy device-minute ÷ diffusers'"] == pytest.approx(14.78 / 7.44)
    assert found["sdxl: least share of a pair's steps that were paired"] == 0.9


def reference(asked: str, rows: int, seconds: float, load_s: float = 0.0, fuse_s: float = 0.0) -> ReferenceImage:
    return ReferenceImage(asked, rows, DiffusersImage(seconds, load_s, fuse_s))


def test_zoo_pace_has_the_times_of_diffusers_by_rows() -> None:
    """A step of two rows takes 16 ms, of one 10 ms; a ControlNet adds 6 ms and 4 ms."""
    images = [
        reference("0C0L", 2, 0.8),
        reference("3C0L", 2, 1.7),
        reference("0C0L", 1, 0.5),
        reference("3C0L", 1, 1.1),
        reference("3C2L", 2, 2.0, load_s=0.003, fuse_s=0.02),
    ]

    pace = zoo_pace(StepTimes.of(images, 50), [0.02, 0.0])

    assert pace.encode.seconds == pytest.approx((0.004, 0.006))
    assert pace.decode.seconds == pytest.approx((0.006, 0.01))
    assert [controlnet.step for controlnet in pace.controlnets] == [pace.encode] * 3
    assert [(lora.load_s, lora.latest_start_fraction) for lora in pace.loras] == [(0.003, 0.02), (0.003, 0.0)] * 2
    assert pace.patch_s == 0.02
    assert reference_seconds(images) == {"0C0L": [0.8], "3C0L": [1.7], "3C2L": [2.0]}
