"""Settings of `pentimento profile`: the generation of images, and the defaults of each kind."""

import logging
from pathlib import Path

import pytest

from pentimento.devices.choices import CompileMode, DeviceChoice, DtypeChoice
from pentimento.profiles.document import ProfileKind
from pentimento.profiles.rules import ThresholdRule
from pentimento.settings import SettingsError, load_settings
from pentimento.supervisor.models import WEIGHTS
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.settings import ProfileSettings, StudyRunSettings


def settings_of(there: Path, *flags: str) -> ProfileSettings:
    return load_settings(ProfileSettings, "profile", ["--model", str(there), *flags], {})


def test_study_settings_are_read_from_flags(tmp_path: Path) -> None:
    flags = ["--device", "cpu", "--dtype", "float32", "--threads", "2", "--max-batch", "4"]

    usual, chosen = settings_of(tmp_path), settings_of(tmp_path, *flags)

    assert usual.study == StudyRunSettings(DeviceChoice.AUTO, DtypeChoice.AUTO, 1, 16)
    assert chosen.study == StudyRunSettings(DeviceChoice.CPU, DtypeChoice.FLOAT32, 2, 4)
    for wrong in (("--threads", "0"), ("--threads", "257"), ("--max-batch", "1025")):
        with pytest.raises(SettingsError, match=wrong[0].strip("-")):
            settings_of(tmp_path, *wrong)


@pytest.mark.parametrize(
    ("kind", "first", "rule"),
    [
        (ProfileKind.REUSE, 600, ThresholdRule.LOWER_BOUND),
        (ProfileKind.STEPS, 200, ThresholdRule.LOWER_BOUND),
        (ProfileKind.HANDOVER, 200, ThresholdRule.LOWER_BOUND),
        (ProfileKind.LORA, 64, ThresholdRule.MEAN),
    ],
)
def test_profile_settings_have_defaults_by_kind(
    kind: ProfileKind, first: int, rule: ThresholdRule, tmp_path: Path
) -> None:
    usual, chosen = settings_of(tmp_path), settings_of(tmp_path, "--first", "9", "--rule", "minimum")

    assert (usual.first_of(kind), usual.rule_of(kind)) == (first, rule)
    assert (chosen.first_of(kind), chosen.rule_of(kind)) == (9, ThresholdRule.MINIMUM)


def test_studied_model_runs_the_forward_pass_that_is_configured(caplog: pytest.LogCaptureFixture) -> None:
    captured = StudyRunSettings(DeviceChoice.CPU, DtypeChoice.FLOAT32, compile=CompileMode.CAPTURE)

    with caplog.at_level(logging.WARNING):
        study_model(WEIGHTS / "tiny-light", StudyRunSettings(DeviceChoice.CPU, DtypeChoice.FLOAT32))
        assert not caplog.records
        study_model(WEIGHTS / "tiny-light", captured)

    assert [record.getMessage()[:36] for record in caplog.records] == ["the forward pass runs eagerly: CUDA "]
