"""What is said to all processes together, by the settings that they really have."""

import pytest

from pentimento.settings.declaration import by_name
from pentimento.settings.sources import from_environment
from services.controller.settings import ControllerSettings
from services.controlnet_svc.settings import ControlNetSettings
from services.discriminator.settings import DiscriminatorSettings
from services.edge.settings import EdgeSettings
from services.embedder.settings import EmbedderSettings
from services.frontdoor.renewal import RenewalSettings
from services.frontdoor.settings import FrontdoorSettings
from services.unet_worker.handover_profile import HandoverProfileSettings
from services.unet_worker.lora_bound import LoraBoundSettings
from services.unet_worker.profile import ProfileSettings
from services.unet_worker.selector_profile import SelectorProfileSettings
from services.unet_worker.settings import UnetWorkerSettings
from services.unet_worker.thinning_profile import ThinningProfileSettings
from services.vectordb_gateway.settings import GatewaySettings

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
# What is measured on a machine where a suite's variables are set.
COMMANDS = (
    HandoverProfileSettings,
    LoraBoundSettings,
    ProfileSettings,
    RenewalSettings,
    SelectorProfileSettings,
    ThinningProfileSettings,
)


@pytest.mark.parametrize("service", (*SERVICES, *COMMANDS), ids=lambda service: service.__name__)
def test_what_another_service_has_is_no_misspelt_setting_of_this_one(service: type) -> None:
    own = by_name(service)
    names = {name for other in SERVICES for name in by_name(other)}
    environ = {f"PENTIMENTO_COMMON_{name.upper()}": "given" for name in names}

    assert set(from_environment("common", own, environ)) == set(own) & names


def test_a_controller_starts_beside_services_that_show_each_other_certificates() -> None:
    environ = {f"PENTIMENTO_COMMON_TLS_{name}_FILE": "pem" for name in ("CLIENT_CA", "CLIENT_CERT", "CLIENT_KEY")}

    assert set(from_environment("common", by_name(ControllerSettings), environ)) == {"tls_client_ca_file"}
