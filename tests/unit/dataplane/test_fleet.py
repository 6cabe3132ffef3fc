from pentimento.dataplane import events
from tests.unit.dataplane.driver import Driver


def test_a_lost_worker_is_forgotten_when_it_stays_away(driver: Driver) -> None:
    driver.worker()
    driver.send(events.WorkerLost("w1", 1))
    driver.now += 30.0

    driver.send(events.TimePassed())

    assert not driver.dataplane.state.workers


def test_a_worker_that_came_back_is_kept(driver: Driver) -> None:
    driver.worker()
    driver.send(events.WorkerLost("w1", 1))
    driver.worker()
    driver.now += 30.0

    driver.send(events.TimePassed())

    assert driver.dataplane.state.workers["w1"].connected


def test_the_loss_of_an_older_generation_is_no_news(driver: Driver) -> None:
    driver.worker(generation=2)

    driver.send(events.WorkerLost("w1", 1))

    assert driver.dataplane.state.workers["w1"].connected


def test_the_loss_of_an_unknown_worker_is_no_news(driver: Driver) -> None:
    assert driver.send(events.WorkerLost("nobody", 1)) == []
