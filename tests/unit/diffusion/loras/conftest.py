import pytest

from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.loras import BaseLayers, layers_of


@pytest.fixture(scope="session")
def base(model: DiffusionModel) -> BaseLayers:
    return layers_of(model.info.family, model.adaptable)


@pytest.fixture(scope="session")
def xl_base(xl_model: DiffusionModel) -> BaseLayers:
    return layers_of(xl_model.info.family, xl_model.adaptable)


@pytest.fixture(scope="session")
def flow_base(flow_model: DiffusionModel) -> BaseLayers:
    return layers_of(flow_model.info.family, flow_model.adaptable)
