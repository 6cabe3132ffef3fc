"""Settings of the controller: rejected by flag, and passed to the policy."""

import re

import pytest

from pentimento.policies.plan.settings import MixtureMode, ModelQuality
from pentimento.settings import SettingsError, load_settings
from services.controller.settings import ControllerSettings


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--allocator guess", "--allocator must be one of .*diffserve, .*, got 'guess'"),
        ("--allocator diffserve", "--heavy must name a model for diffserve"),
        ("--allocator diffserve --heavy h", "--light must name a model for diffserve"),
        ("--allocator modm --heavy h", "--small must name a model for modm"),
        (
            "--allocator diffserve --heavy h --light h --slo-s 1",
            "--light must be another model than heavy",
        ),
        ("--allocator joint --heavy h --light l", "--slo-s must be above 0 and finite for joint"),
        ("--slo-s -1", "--slo-s must be at least 0, got -1"),
        ("--standby", "--standby needs a --ledger-url"),
        ("--deferral 0:0.5,1:0.1", "--deferral must be THRESHOLD:SHARE, …: .*ascend"),
        ("--deferral 0:0,1", "--deferral must be THRESHOLD:SHARE, …: "),
        ("--deferral 0:0,1:x", "--deferral must be THRESHOLD:SHARE, …: "),
        ("--modm-mode cheap", "--modm-mode must be one of quality, throughput, got 'cheap'"),
        ("--heavy h --qualities h=1.1", "--qualities must be MODEL=QUALITY.*, got 'h=1.1'"),
        ("--heavy h --qualities h=0.9:0:2.1", "--qualities must be MODEL=QUALITY.*, got 'h=0.9:0:2.1'"),
        ("--heavy h --qualities h=nan", "--qualities must be MODEL=QUALITY.*, got 'h=nan'"),
        ("--heavy h --qualities h", "--qualities must be MODEL=QUALITY.*, got 'h'"),
        ("--heavy h --qualities h=1:0:1:0", "--qualities must be MODEL=QUALITY.*, got 'h=1:0:1:0'"),
        ("--heavy h --qualities x=1", "--qualities must name a model of --heavy, --light and --small once, got 'x'"),
        ("--heavy h --qualities h=1,h=0.9", "--qualities must name a model of .* once, got 'h'"),
        *(
            (f"--policy-options {given}", f"--policy-options must be NAME=NUMBER within limits, .*; got '{given}'")
            for given in (
                "peak_per_s",
                "peak_per_s=x",
                "peak_per_s=-1",
                "peak_per_s=inf",
                "slo_s=1",
                "dwell_s=-1",
                "overprovision=11",
                "run_price=1.1",
            )
        ),
    ],
)
def test_wrong_or_missing_setting_names_its_flag(flags: str, message: str):
    with pytest.raises(SettingsError, match=message):
        load_settings(ControllerSettings, "controller", flags.split(), {})


def test_settings_of_a_deferral_curve_and_qualities_reach_the_policy():
    flags = "--heavy h --light l --deferral 0:0,0.5:0.2,1:1 --qualities h=0.95:0.1:0.9"

    serving = load_settings(ControllerSettings, "controller", flags.split(), {}).serving.serving()

    assert serving.deferral.share(0.5) == 0.2
    assert serving.quality_of("h") == ModelQuality("h", 0.95, 0.1, 0.9)
    assert serving.quality_of("l") == ModelQuality("l", 0.9)


def test_policy_options_reach_the_policy() -> None:
    options = "expected_per_s=2,peak_per_s=9,fixed_threshold=0.25,demand_weight=0.5,hysteresis=0.75"
    options += ",dwell_s=7,damping_period_s=0,overprovision=1.5,run_price=0.125"

    flags = ["--policy-options", options, "--modm-mode", "throughput"]
    serving = load_settings(ControllerSettings, "controller", flags, {}).serving.serving()

    assert (serving.dwell_s, serving.damping_period_s, serving.modm_mode) == (7.0, 0.0, MixtureMode.THROUGHPUT)
    assert (serving.expected_per_s, serving.peak_per_s, serving.fixed_threshold) == (2.0, 9.0, 0.25)
    assert (serving.demand_weight, serving.hysteresis) == (0.5, 0.75)
    assert (serving.overprovision, serving.run_price) == (1.5, 0.125)


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--expected-per-s", "`policy_options` takes it, as expected_per_s=NUMBER"),
        ("--retention-s", "a silent replica stays visible for 60 s"),
        ("--scaler-client-ca-file", "the scaler follows `tls_dir` and `mutual_tls`"),
        ("--leader-lease-s", "`lease_s` is also the silence of a leader"),
    ],
)
def test_removed_setting_is_refused_with_its_reason(flag: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"it was removed: {reason}")):
        load_settings(ControllerSettings, "controller", [flag, "1"], {})
