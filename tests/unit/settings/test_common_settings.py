"""What is said to all processes together, by the settings that they really have."""

import pytest

from pentimento.settings.declaration import by_name
from pentimento.settings.sources import from_environment
from services.controller.settings import ControllerSettings
from services.controlnet_svc.settings import ControlNetSettings
from services.discriminator.settings import DiscriminatorSettings, EmulatedDiscriminatorSettings
from services.edge.settings import EdgeSettings
from services.embedder.settings import EmbedderSettings
from services.frontdoor.settings import FrontdoorSettings
from services.unet_worker.settings import EmulatedWorkerSettings, UnetWorkerSettings
from services.vectordb_gateway.settings import GatewaySettings

SERVICES = (
    ControllerSettings,
    ControlNetSettings,
    DiscriminatorSettings,
    EdgeSettings,
    EmbedderSettings,
    EmulatedDiscriminatorSettings,
    EmulatedWorkerSettings,
    FrontdoorSettings,
    GatewaySettings,
    UnetWorkerSettings,
)


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.__name__)
def test_what_another_service_has_is_no_misspelt_setting_of_this_one(service: type) -> None:
    own = by_name(service)
    environ = {f"PENTIMENTO_COMMON_{name.upper()}": "given" for other in SERVICES for name in by_name(other)}

    assert set(from_environment("common", own, environ)) == set(own)


def test_a_controller_starts_beside_services_that_show_each_other_certificates() -> None:
    environ = {f"PENTIMENTO_COMMON_TLS_{name}_FILE": "pem" for name in ("CLIENT_CA", "CLIENT_CERT", "CLIENT_KEY")}

    assert set(from_environment("common", by_name(ControllerSettings), environ)) == {"tls_client_ca_file"}
