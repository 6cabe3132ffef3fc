"""The settings that kill_any gives to the services."""

import pytest

from benchmarks.kill_any import ENVIRONMENT, OF_HOSTS
from pentimento.settings.loading import load_settings
from services.controller.settings import ControllerSettings
from services.frontdoor.settings import FrontdoorSettings


@pytest.mark.parametrize(("cls", "section"), [(ControllerSettings, "controller"), (FrontdoorSettings, "frontdoor")])
def test_settings_of_environment_are_known(cls: type, section: str) -> None:
    load_settings(cls, section, (), ENVIRONMENT | OF_HOSTS)
