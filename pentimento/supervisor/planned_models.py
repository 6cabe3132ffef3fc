"""Name the models that a policy plans without a cascade."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pentimento.settings import setting
from pentimento.settings.loading import setting_of
from pentimento.supervisor.models import ModelDirectory


@dataclass(frozen=True)
class PlannedModels:
    """Hold the controller's settings of environment and file; they take precedence over the suite's models."""

    heavy: str = setting("", help="see the controller")
    light: str = setting("", help="see the controller")
    small: tuple[str, ...] = setting((), help="see the controller")


def planned_models(models: Sequence[ModelDirectory], small: Sequence[str], config_file: Path | None) -> tuple[str, ...]:
    """Return the controller's flags: the first model is the heavy one, and the models of `small` refine hits, best
    first. If `small` is empty the other models do."""

    def given(name: str) -> Any:
        return setting_of(PlannedModels, name, "controller", config_file, os.environ)

    heavy = given("heavy") or models[0].name
    others = [] if given("light") or given("small") else [model.name for model in models if model.name != heavy]
    refining = small or others
    return ("--heavy", heavy, *(("--small", ",".join(refining)) if refining else ()))
