"""What the commands that measure a model by painting take alike."""

from pathlib import Path
from typing import Any

import pytest

from pentimento.settings import SettingsError, load_settings
from services.unet_worker.settings import (
    DeviceChoice,
    DtypeChoice,
    HandoverProfileSettings,
    LoraBoundSettings,
    SelectorProfileSettings,
    StudyPaintingSettings,
    ThinningProfileSettings,
)

NEEDS = {
    HandoverProfileSettings: ("model", "light-model", "prompts", "embedder-address"),
    LoraBoundSettings: ("model", "loras", "prompts"),
    SelectorProfileSettings: ("model", "prompts", "embedder-address"),
    ThinningProfileSettings: ("model", "prompts", "embedder-address"),
}


def painting_of(settings: Any, there: Path, *flags: str) -> StudyPaintingSettings:
    needed = [part for name in NEEDS[settings] for part in (f"--{name}", str(there))]
    loaded = load_settings(settings, "bench", [*needed, *flags], {})
    assert isinstance(loaded.painting, StudyPaintingSettings)
    return loaded.painting


@pytest.mark.parametrize("settings", NEEDS)
def test_they_are_painted_by_the_same_flags(settings: Any, tmp_path: Path) -> None:
    flags = ["--seed", "3", "--device", "cpu", "--dtype", "float32", "--threads", "2", "--max-batch", "4"]

    usual = painting_of(settings, tmp_path)
    chosen = painting_of(settings, tmp_path, *flags)

    assert usual == StudyPaintingSettings(0, DeviceChoice.AUTO, DtypeChoice.AUTO, 1, 16)
    assert chosen == StudyPaintingSettings(3, DeviceChoice.CPU, DtypeChoice.FLOAT32, 2, 4)
    for wrong in (("--seed", "-1"), ("--threads", "0"), ("--threads", "257"), ("--max-batch", "1025")):
        with pytest.raises(SettingsError, match=wrong[0].strip("-")):
            painting_of(settings, tmp_path, *wrong)
