"""A dataplane that leaves steps out, and requests for images of ten steps."""

from pentimento.dataplane import DataplaneSettings, effects
from pentimento.policies.thinning import ThinningMode, ThinningOffer
from tests.unit.dataplane.driver import OFFER, Driver


def driver_in(mode: ThinningMode, **settings: object) -> Driver:
    """Return a driver with one worker of one credit, ten seconds an image."""
    driver = Driver(DataplaneSettings(thinning=mode, **settings))  # type: ignore[arg-type]
    driver.profile("m", (1, 1.0))
    driver.worker()
    return driver


def started(driver: Driver, deadline_s: float, offer: ThinningOffer = OFFER) -> effects.Execute:
    return driver.start(driver.queue("r1", deadline=driver.now + deadline_s, work=10.0, thinning=offer))
