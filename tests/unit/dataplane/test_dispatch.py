from pentimento.dataplane import effects, events
from pentimento.domain.fleet import Plan, PoolPlan, WorkerAssignment
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.driver import Driver, kinds, only


def plan_of(*worker_ids: str, sequence: int = 1, pools: tuple[PoolPlan, ...] = ()) -> events.PlanReceived:
    assignments = tuple(WorkerAssignment(worker_id, f"unix:/{worker_id}", "m", 1) for worker_id in worker_ids)
    return events.PlanReceived(Plan(PlanVersion(1, sequence), assignments, pools))


def test_a_request_waits_for_a_credit(driver: Driver) -> None:
    assert driver.queue() == []

    assert only(effects.PersistAttempt, driver.worker()).worker_id == "w1"


def test_an_attempt_runs_after_it_is_journalled(driver: Driver) -> None:
    driver.worker()

    persist = only(effects.PersistAttempt, driver.queue())

    assert kinds(driver.send(events.AttemptPersisted("r1", persist.fencing_token))) == [effects.Execute]


def test_no_more_than_the_credits_is_dispatched(driver: Driver) -> None:
    for number in range(5):
        driver.queue(f"r{number}")

    dispatched = driver.worker(credit_count=2)

    assert [effect.request_id for effect in dispatched if isinstance(effect, effects.PersistAttempt)] == ["r0", "r1"]


def test_the_least_loaded_worker_goes_first(driver: Driver) -> None:
    driver.worker("w1", credit_count=2)
    driver.worker("w2", credit_count=2)

    chosen = [only(effects.PersistAttempt, driver.queue(f"r{number}")).worker_id for number in range(4)]

    assert sorted(chosen[:2]) == ["w1", "w2"]
    assert sorted(chosen[2:]) == ["w1", "w2"]


def test_only_a_worker_that_holds_the_pinned_digest_is_offered_the_request(driver: Driver) -> None:
    driver.worker("old", model_digest="d-old")

    assert driver.queue(digest="d-new") == []
    assert only(effects.PersistAttempt, driver.worker("new", model_digest="d-new")).worker_id == "new"


def test_a_worker_that_switches_its_model_serves_the_other_lane(driver: Driver) -> None:
    driver.worker(model_digest="d-old")
    driver.queue(digest="d-new")

    assert only(effects.PersistAttempt, driver.worker(model_digest="d-new")).request_id == "r1"
    assert driver.queue("r2", digest="d-old") == []


def test_a_draining_worker_gets_nothing(driver: Driver) -> None:
    driver.worker(draining=True)

    assert driver.queue() == []


def test_a_worker_outside_the_plan_gets_nothing_until_the_plan_names_it(driver: Driver) -> None:
    driver.worker(pinned=False)
    assert driver.queue() == []

    assert only(effects.PersistAttempt, driver.send(plan_of("w1"))).worker_id == "w1"


def test_an_older_plan_changes_nothing(driver: Driver) -> None:
    driver.worker(pinned=False)
    driver.send(plan_of("w1", sequence=2))

    driver.send(plan_of(sequence=1))

    assert only(effects.PersistAttempt, driver.queue()).worker_id == "w1"


def test_a_worker_serves_every_pool_that_the_plan_gives_it(driver: Driver) -> None:
    driver.send(plan_of("w1", pools=(PoolPlan("miss", "m", ("w1",)), PoolPlan("hit", "m", ("w1",)))))
    driver.worker("w1", pinned=False, credit_count=2)

    chosen = [only(effects.PersistAttempt, driver.queue(pool, pool=pool)).worker_id for pool in ("hit", "miss")]

    assert chosen == ["w1", "w1"]


def test_credits_shrink_without_stopping_what_runs(driver: Driver) -> None:
    driver.worker(credit_count=2)
    driver.run("r1")
    driver.run("r2")

    driver.worker(credit_count=1)

    assert driver.queue("r3") == []
    assert len(driver.dataplane.state.workers["w1"].in_flight) == 2


def test_a_refused_worker_is_left_alone_until_it_speaks_again(driver: Driver) -> None:
    driver.worker()
    run = driver.run()

    after = driver.send(events.AttemptFailed("r1", run.fencing_token, events.FailureKind.NO_CREDIT))

    assert kinds(after) == [effects.ReleaseGrant]
    retry = only(effects.PersistAttempt, driver.worker())
    assert (retry.attempt_number, driver.dataplane.state.requests["r1"].losses) == (2, 0)


def test_a_place_that_is_about_to_be_free_is_given_away_at_once(driver: Driver) -> None:
    driver.worker(credit_count=1)
    token = driver.run("running").fencing_token
    driver.queue("waiting")

    after = driver.send(events.AttemptYielded("running", token))

    assert only(effects.PersistAttempt, after).request_id == "waiting"
    assert driver.send(events.AttemptYielded("running", token)) == []


def test_a_yielded_place_is_given_away_once(driver: Driver) -> None:
    driver.worker(credit_count=1)
    token = driver.run("running").fencing_token
    for name in ("first", "second"):
        driver.queue(name)
    driver.send(events.AttemptYielded("running", token))

    assert effects.PersistAttempt not in kinds(driver.send(events.AttemptFinished("running", token)))


def test_who_is_due_before_one_that_runs_goes_to_a_full_worker(driver: Driver) -> None:
    driver.worker(credit_count=1, reserve_count=1)
    driver.run("aged", deadline=driver.now + 100.0)

    later = driver.queue("later", deadline=driver.now + 200.0)
    urgent = driver.queue("urgent", deadline=driver.now + 5.0)
    more_urgent = driver.queue("more urgent", deadline=driver.now + 4.0)

    assert effects.PersistAttempt not in kinds(later)
    assert only(effects.PersistAttempt, urgent).request_id == "urgent"
    assert effects.PersistAttempt not in kinds(more_urgent)


def test_of_full_workers_the_one_with_the_least_urgent_attempt_takes_who_is_urgent(driver: Driver) -> None:
    for name, seconds in (("w1", 50.0), ("w2", 100.0)):
        driver.worker(name, credit_count=1, reserve_count=1)
        driver.run(f"on {name}", deadline=driver.now + seconds)

    assert only(effects.PersistAttempt, driver.queue("urgent", deadline=driver.now + 5.0)).worker_id == "w2"


def test_a_full_worker_that_switched_its_model_takes_nobody_urgent_for_the_old_one(driver: Driver) -> None:
    driver.worker(credit_count=1, reserve_count=1)
    driver.run("aged", deadline=driver.now + 100.0)
    driver.worker(credit_count=1, reserve_count=1, model="n", model_digest="e")

    assert effects.PersistAttempt not in kinds(driver.queue("urgent", deadline=driver.now + 5.0))
