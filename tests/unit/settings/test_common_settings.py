"""Settings for all processes together: each takes its own."""

from collections.abc import Iterator
from enum import Enum

from pentimento.domain.shapes import item_of, without_none
from pentimento.settings import SettingsError
from pentimento.settings.declaration import by_name
from pentimento.settings.loading import from_environment, setting_of
from services.controller.settings import ControllerSettings
from services.controlnet_svc.settings import ControlNetSettings
from services.discriminator.settings import DiscriminatorSettings
from services.edge.settings import EdgeSettings
from services.embedder.settings import EmbedderSettings
from services.frontdoor.renewal import RenewalSettings
from services.frontdoor.settings import FrontdoorSettings
from services.unet_worker.profiling.settings import ProfileSettings
from services.unet_worker.settings import UnetWorkerSettings
from services.vectordb_gateway.settings import GatewaySettings
from tests.support.refusals import raises

SERVICES = (
    ControllerSettings,
    ControlNetSettings,
    DiscriminatorSettings,
    EdgeSettings,
    EmbedderSettings,
    FrontdoorSettings,
    GatewaySettings,
    UnetWorkerSettings,
)
# Commands that measure on a machine with a suite's variables set.
COMMANDS = (ProfileSettings, RenewalSettings)


def test_common_settings_of_other_services_are_no_misspelt_ones() -> None:
    names = {name for service in SERVICES for name in by_name(service)}
    environ = {f"PENTIMENTO_COMMON_{name.upper()}": "given" for name in names}

    for service in (*SERVICES, *COMMANDS):
        own = by_name(service)
        assert set(from_environment("common", own, environ)) == set(own) & names, service


def faults_of(service: type) -> Iterator[str]:
    """Yield each setting of a class that refuses its default or a bound, or takes a value beyond one or other text."""
    for one in by_name(service).values():
        kind = item_of(without_none(one.kind))[1]
        bounds = [bound for bound in (one.minimum, one.maximum) if bound is not None]
        values = one.default if isinstance(one.default, tuple) else (one.default,)
        given = [value for value in values if isinstance(value, int | float)]
        beyond = ["canary"] if kind in (int, float, bool) or issubclass(kind, Enum) else []
        beyond += [f"{kind(bound - 1)}" for bound in bounds[:1] if bound == one.minimum]
        beyond += [f"{kind(bound + 1)}" for bound in bounds[-1:] if bound == one.maximum]
        for value in (*bounds, *(given if bounds else ())):
            if not is_taken(service, one.name, f"{kind(value)}"):
                yield f"{service.__name__}.{one.name} refuses {value}"
        for text in beyond:
            if is_taken(service, one.name, text):
                yield f"{service.__name__}.{one.name} takes {text}"


def is_taken(service: type, name: str, text: str) -> bool:
    return not raises(SettingsError, setting_of, service, name, "any", None, {f"PENTIMENTO_ANY_{name.upper()}": text})


def test_every_setting_takes_its_bounds_and_nothing_beyond() -> None:
    assert [fault for service in (*SERVICES, *COMMANDS) for fault in faults_of(service)] == []
