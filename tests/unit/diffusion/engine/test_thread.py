"""Test the engine through its thread: steps in order, stops at the next step, and a failing image affects no other."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart
from pentimento.diffusion.engine import EngineSettings, FinishedDenoising, StepEngine
from pentimento.diffusion.families import DiffusionModel
from pentimento.domain.errors import Cancelled, DeadlineExceeded, Internal, PentimentoError, Unavailable
from pentimento.policies.step_batching import GroupTurns
from tests.unit.diffusion.engine.loops import Listener
from tests.unit.diffusion.specs import SPEC, denoise

ALONE = EngineSettings(max_batch=1)


@pytest.fixture
def engine(model: DiffusionModel) -> Any:
    engine = StepEngine(model, ALONE)
    engine.start()
    yield engine
    engine.close()


NOISE = DenoisingRequest(SPEC, NoiseStart())


def submit(engine: StepEngine, request: DenoisingRequest = NOISE, **listener: Any) -> Listener:
    heard = Listener(**listener)
    engine.submit(request, heard)
    return heard


def canary_succeeds(engine: StepEngine, model: DiffusionModel) -> bool:
    result = submit(engine).result()
    return isinstance(result, FinishedDenoising) and torch.equal(result.latent, denoise(model, NOISE))


def test_a_denoising_goes_through_all_its_steps(engine: StepEngine, model: DiffusionModel) -> None:
    heard = submit(engine)

    result = heard.result()

    assert isinstance(result, FinishedDenoising)
    assert heard.start == (0, 8)
    assert heard.steps == list(range(1, 9))
    assert torch.equal(result.latent, denoise(model, NOISE))


def test_requests_are_taken_in_arrival_order(engine: StepEngine) -> None:
    order: list[int] = []
    heard = [submit(engine, at_step={8: lambda seed=seed: order.append(seed)}) for seed in range(4)]

    for one in heard:
        one.result()

    assert order == [0, 1, 2, 3]


def test_captured_latents_resume_to_the_same_image(engine: StepEngine) -> None:
    heard = submit(engine, replace(NOISE, capture_steps=frozenset({2, 5, 8, 99})))
    whole = heard.result()

    resumed = submit(engine, DenoisingRequest(SPEC, LatentStart(heard.latents[5], 5))).result()

    assert set(heard.latents) == {2, 5}
    assert isinstance(whole, FinishedDenoising)
    assert isinstance(resumed, FinishedDenoising)
    assert torch.equal(resumed.latent, whole.latent)


def test_a_stopped_denoising_takes_no_further_step(engine: StepEngine, model: DiffusionModel) -> None:
    gate = threading.Event()
    heard = Listener(at_step={1: lambda: gate.wait(60)})
    ticket = engine.submit(NOISE, heard)
    heard.at_step[3] = lambda: ticket.stop(Cancelled("CANCELLED", "no more"))
    gate.set()

    assert isinstance(heard.result(), Cancelled)
    assert heard.steps == [1, 2, 3]
    assert canary_succeeds(engine, model)


def test_a_waiting_denoising_is_stopped_without_a_step(engine: StepEngine) -> None:
    waiting = Listener()
    first = Listener()
    gate = threading.Event()
    first.at_step[1] = lambda: gate.wait(60)
    engine.submit(NOISE, first)
    ticket = engine.submit(NOISE, waiting)
    ticket.stop(Cancelled("CANCELLED", "no more"))
    gate.set()

    assert isinstance(waiting.result(), Cancelled)
    assert waiting.start is None
    assert isinstance(first.result(), FinishedDenoising)


def raise_error() -> None:
    raise RuntimeError("a prompt might be quoted here")


def test_close_fails_remaining_requests_and_takes_no_more(model: DiffusionModel) -> None:
    engine = StepEngine(model, ALONE)
    engine.start()
    gate = threading.Event()
    running = submit(engine, at_step={1: lambda: gate.wait(60)})
    waiting = submit(engine)
    closer = threading.Thread(target=engine.close)
    closer.start()
    gate.set()
    closer.join()

    assert isinstance(running.result(), Unavailable)
    assert isinstance(waiting.result(), Unavailable)
    with pytest.raises(Unavailable):
        submit(engine)


def test_a_listener_that_is_gone_does_not_take_the_engine_along(engine: StepEngine, model: DiffusionModel) -> None:
    class Gone(Listener):
        def failed(self, error: PentimentoError) -> None:
            super().failed(error)
            raise RuntimeError("Event loop is closed")

    heard = Gone()
    engine.submit(replace(NOISE, deadline=0.0), heard)

    assert isinstance(heard.result(), DeadlineExceeded)
    assert canary_succeeds(engine, model)


def test_call_runs_on_engine_thread_and_raises_to_its_caller(engine: StepEngine, model: DiffusionModel) -> None:
    assert engine.call(lambda: threading.current_thread().name).result(60) == "step-engine"
    with pytest.raises(RuntimeError, match="quoted"):
        engine.call(raise_error).result(60)
    assert canary_succeeds(engine, model)


@pytest.mark.parametrize("begun", [False, True])
def test_cancelled_call_leaves_thread_alone(engine: StepEngine, model: DiffusionModel, begun: bool) -> None:
    arrived, goes_on, acted = threading.Event(), threading.Event(), []

    def held() -> None:
        arrived.set()
        assert goes_on.wait(60)

    first = engine.call(held)
    assert arrived.wait(60)
    left = first if begun else engine.call(lambda: acted.append("left"))
    left.cancel()
    goes_on.set()

    assert canary_succeeds(engine, model)
    assert acted == []


def test_defect_of_loop_ends_requests_and_not_thread(model: DiffusionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    defects = [RuntimeError("a prompt might be quoted here")]

    choose = GroupTurns.choose

    def choose_or_raise(*args: Any, **options: Any) -> Any:
        if defects:
            raise defects.pop()
        return choose(*args, **options)

    monkeypatch.setattr(GroupTurns, "choose", choose_or_raise)
    engine = StepEngine(model, ALONE)
    heard = submit(engine)
    engine.start()

    assert isinstance(heard.result(), Internal)
    assert canary_succeeds(engine, model)
    engine.close()


def test_request_interrupts_idle_work_which_continues_later(engine: StepEngine, model: DiffusionModel) -> None:
    interrupted, began, again = [], threading.Event(), threading.Event()

    def work(wanted: Callable[[], bool]) -> bool:
        if interrupted:
            again.set()
            return False
        began.set()
        while not wanted():
            pass
        interrupted.append(engine.running_count)
        return True

    engine.work_when_idle(work)
    assert began.wait(60)

    assert canary_succeeds(engine, model)
    assert again.wait(60)
    assert interrupted == [0]


def test_work_for_idle_times_that_raises_is_not_tried_again(engine: StepEngine, model: DiffusionModel) -> None:
    tried, was_idle = list[str](), threading.Event()

    def work(wanted: Callable[[], bool]) -> bool:
        tried.append("once")
        was_idle.set()
        raise ValueError("broken")

    engine.work_when_idle(work)

    assert was_idle.wait(60)
    assert canary_succeeds(engine, model)
    assert canary_succeeds(engine, model)
    assert tried == ["once"]


def test_closing_does_not_wait_for_work_for_idle_times(model: DiffusionModel) -> None:
    engine = StepEngine(model, ALONE)
    began = threading.Event()

    def work(wanted: Callable[[], bool]) -> bool:
        began.set()
        while not wanted():
            pass
        return True

    engine.start()
    engine.work_when_idle(work)
    assert began.wait(60)

    engine.close()

    assert not engine._thread.is_alive()
