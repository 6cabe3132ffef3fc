"""Test settings of policies from the file of an emulated fleet."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.emulation.fleet_file import read_fleet
from lab.emulation.fleet_settings import fleet_settings
from pentimento.policies.plan.settings import DeferralCurve, ModelQuality

FLEET = """
default_model = "big"
cascade = ["small", "big"]
models = [
    { name = "small", steps = 1, latency_s = { 1 = 0.1 } },
    { name = "big", steps = 40, latency_s = { 1 = 1.0 } },
]
devices = [{ name = "d", count = 1, models = ["big", "small"] }]
discriminator = { score_s = 0.25 }
deferral = { thresholds = [0.0, 0.5, 1.0], shares = [0.0, 0.2, 1.0] }
"""


def test_fleet_settings_have_models_steps_and_deferral(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET)

    found = fleet_settings(read_fleet(file))

    assert (found.heavy, found.light, found.step_count) == ("big", "small", 40)
    assert (found.discriminator_s, found.deferral) == (0.25, DeferralCurve((0.0, 0.5, 1.0), (0.0, 0.2, 1.0)))
    assert fleet_settings(replace(read_fleet(file), discriminator=None)).discriminator_s == 0.0


def test_fleet_settings_have_qualities(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    worth = 'quality = 0.7, quality_spread = 0.2, reuse_quality = 0.95, name = "small"'
    file.write_text(FLEET.replace('name = "small"', worth))

    assert fleet_settings(read_fleet(file)).qualities == (ModelQuality("small", 0.7, 0.2, 0.95),)


@pytest.mark.parametrize("cascade", [(), ("big",)])
def test_a_fleet_without_a_cascade_has_no_light_model(tmp_path: Path, cascade: tuple[str, ...]) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET)

    assert fleet_settings(replace(read_fleet(file), cascade=cascade)).light == ""
