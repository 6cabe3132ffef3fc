import pytest

from tests.unit.dataplane.driver import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()
