"""Two engines compute the halves of guidance of an image: it is the same image, even if the peer fails."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.denoising_sources import AskedStep, AskedSteps, HalfStart
from pentimento.diffusion.engine import FinishedDenoising
from pentimento.diffusion.families import BatchKey, DenoiserInput, DiffusionModel, load_model
from pentimento.diffusion.loras import WeightedLora, layers_of
from pentimento.domain.errors import Unavailable
from pentimento.domain.generation import Scheduler
from tests.unit.diffusion.engine.loops import Added, Listener, Loop, Scripted
from tests.unit.diffusion.engine.test_batches import assert_same_image, request
from tests.unit.diffusion.engine.test_batches import request as asked_for
from tests.unit.diffusion.engine.test_loras import Late, denoised, finish
from tests.unit.diffusion.loras.made_loras import made_lora
from tests.unit.diffusion.specs import denoise, spec_with

# The tolerance for other batches (ADR 0009): a half is one row, and a whole step has two.
TOLERANCE = 1e-4


@dataclass
class Peer:
    """A loop that computes halves for an image of another loop. It misses the steps in `late`, and is gone from
    `lost_at` on."""

    loop: Loop
    late: set[int] = field(default_factory=set)
    lost_at: int | None = None
    busy: bool = False
    asked: list[int] = field(default_factory=list)
    given: dict[int, Tensor] = field(default_factory=dict)
    loras: Any = None
    control: Any = None
    step_count: int = 6
    left: int = 0
    half: Added | None = None
    steps: AskedSteps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = AskedSteps.of(self.step_count, self.given.__setitem__)

    def ask(self, step_index: int, inputs: DenoiserInput) -> bool:
        if self.busy or self._is_lost(step_index):
            return False
        self.asked.append(step_index)
        self.steps.ask(AskedStep(step_index, float(inputs.timesteps[0]), inputs.latents))
        if self.half is None:
            texts = replace(inputs.conditioning, projected=None)
            spec = spec_with(prompt="", num_inference_steps=self.step_count, guidance_scale=1.0)
            asked = DenoisingRequest(spec, HalfStart(texts, self.steps), control=self.control, loras=self.loras)
            self.half = self.loop.add(asked)
        return True

    def take(self, step_index: int) -> Tensor | None:
        if self.lost_at is not None and step_index >= self.lost_at:
            raise Unavailable("PEER_LOST", "the peer is gone")
        if step_index in self.late:
            return None
        if step_index not in self.given:
            self.loop.tick()
        return self.given.get(step_index)

    def leave(self) -> None:
        self.left += 1

    def _is_lost(self, step_index: int) -> bool:
        return self.lost_at is not None and step_index > self.lost_at


def seen_rows(model: DiffusionModel) -> tuple[Scripted, list[int]]:
    rows: list[int] = []

    def note(_: int, inputs: DenoiserInput, prediction: Tensor) -> Tensor:
        rows.append(len(inputs.latents))
        return prediction

    return Scripted(model, note), rows


@pytest.mark.parametrize(
    ("loaded", "changes"),
    [
        ("model", {}),
        ("model", {"scheduler": Scheduler.EULER}),
        ("model", {"scheduler": Scheduler.EULER_ANCESTRAL}),
        ("model", {"negative_prompt": "fog, rain", "guidance_scale": 9.0}),
        ("xl_model", {}),
        ("flow_model", {"scheduler": Scheduler.FLOW_MATCH_EULER}),
    ],
    ids=["DDIM", "Euler", "ancestral", "negative prompt", "SDXL", "flow"],
)
def test_paired_image_is_that_of_one_worker(
    loaded: str, changes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    found: DiffusionModel = request.getfixturevalue(loaded)
    denoiser, rows = seen_rows(found)
    loop, peer = Loop(found, denoiser=denoiser), Peer(Loop(found))
    added = loop.add(replace(asked_for(1, **changes), peer=peer))

    loop.run()

    assert rows == [1] * 6
    assert loop.observer.steps == []
    assert peer.asked == list(range(6)) and peer.half is not None and peer.half.finished
    assert added.finished.paired_step_count == 6
    assert_same_image(found, added)


def test_next_half_is_requested_before_listeners_receive_step(model: DiffusionModel) -> None:
    loop, peer, told = Loop(model), Peer(Loop(model)), []
    heard = Listener(at_step={step: lambda: told.append(list(peer.asked)) for step in range(1, 7)})

    loop.add(replace(request(1), peer=peer), heard)
    loop.run()

    # The last step is followed by none.
    assert told == [list(range(min(step, 5) + 1)) for step in range(1, 7)]


@pytest.mark.parametrize(
    ("fault", "taken", "in_time", "rows", "paired"),
    [
        ({"lost_at": 3}, 6, False, [1, 1, 1, 1, 2, 2, 2], 3),
        ({"busy": True}, 6, False, [2] * 6, 0),
        ({"late": {2}}, 2, False, [1, 1, 1, 2, 1, 1, 1], 5),
        ({"late": {2}}, 2, True, [1] * 6, 6),
    ],
    ids=["lost", "busy", "late", "in time"],
)
def test_steps_without_peer_are_computed_here(
    model: DiffusionModel, fault: dict[str, Any], taken: int, in_time: bool, rows: list[int], paired: int
) -> None:
    """`taken` steps are taken before a half is waited for, which comes in time or not."""
    denoiser, seen = seen_rows(model)
    loop, peer = Loop(model, denoiser=denoiser), Peer(Loop(model), **fault)
    added = loop.add(replace(request(1), peer=peer))

    loop.run()
    before = list(added.heard.steps)
    if in_time:
        peer.late.clear()
    else:
        loop.now = loop.steps.next_deadline() or loop.now
    loop.run()

    assert (before, seen) == ([1, 2, 3, 4, 5, 6][:taken], rows)
    assert added.heard.steps == [1, 2, 3, 4, 5, 6]
    assert added.finished.paired_step_count == paired
    assert_same_image(model, added)
    assert paired or torch.equal(added.heard.latent, denoise(model, request(1)))


@pytest.mark.parametrize("changes", [{"guidance_scale": 1.0}, {}], ids=["unguided", "alone"])
def test_unguided_or_alone_request_has_no_peer(model: DiffusionModel, changes: dict[str, Any]) -> None:
    loop, peer = Loop(model), Peer(Loop(model))
    added = loop.add(replace(request(1, **changes), peer=peer, alone=not changes))

    loop.run()

    assert peer.asked == []
    assert added.finished.paired_step_count == 0


def test_halves_share_a_pass_with_each_other_and_with_unguided_images(model: DiffusionModel) -> None:
    shared = Loop(model)
    peers = [Peer(shared), Peer(shared)]
    leaders = [Loop(model), Loop(model)]
    added = [one.add(replace(request(seed), peer=peer)) for seed, one, peer in zip((1, 2), leaders, peers, strict=True)]
    unguided = shared.add(request(3, guidance_scale=1.0))
    for peer in peers:
        peer.late = {0}
    for leader in leaders:
        leader.run()

    shared.tick()

    assert shared.observer.sizes == [3]
    for peer, leader in zip(peers, leaders, strict=True):
        peer.late = set()
        leader.run()
    shared.run()
    for one in (*added, unguided):
        assert_same_image(model, one)


def test_loras_change_both_halves_before_peer_is_used(model: DiffusionModel, checkpoint: Path) -> None:
    base = layers_of(model.info.family, model.adaptable)
    adapters = (WeightedLora(made_lora(base, 1), 0.7),)
    # Weights are patched in place: each worker has its own.
    theirs = load_model(checkpoint, torch.device("cpu"), torch.float32)
    loop, peer = Loop(model), Peer(Loop(theirs), loras=Late(adapters))
    asked = replace(request(1), loras=Late(adapters, late_asks=2, latest_step=3))
    added = loop.add(replace(asked, peer=peer))

    finish(loop)

    end = added.heard.end
    assert isinstance(end, FinishedDenoising) and end.lora_patch_step is not None
    assert 0 < end.lora_patch_step == peer.asked[0]
    assert added.finished.paired_step_count == 6 - end.lora_patch_step
    wanted = denoised(model, asked, adapters, end.lora_patch_step)
    torch.testing.assert_close(added.heard.latent, wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.usefixtures("four_tried")
def test_paired_steps_that_are_no_shorter_end_the_pair(model: DiffusionModel) -> None:
    loop = Loop(model)
    peer = Peer(Loop(model))

    def seconds_pass(number: int, inputs: DenoiserInput, prediction: Tensor) -> Tensor:
        loop.now += 1.0
        return prediction

    loop.steps._denoiser = Scripted(model, seconds_pass)
    loop.add(request(9))
    loop.run()
    added = loop.add(replace(request(1), peer=peer))

    loop.run()

    # A whole step takes a second, and so does a half: four are tried after the first, which opens the stream.
    assert (peer.asked, added.finished.paired_step_count) == ([0, 1, 2, 3, 4], 5)
    assert not loop.steps.pairs.pays(model.info.batch_key(request(1).spec))
    assert loop.steps.pairs.pays(BatchKey(128, 64, guided=True))


def test_waiting_request_delays_no_other_and_is_stopped(model: DiffusionModel) -> None:
    loop, peer = Loop(model), Peer(Loop(model), late={0})
    waiting, plain = loop.add(replace(request(1), peer=peer)), loop.add(request(2))
    loop.run()
    assert waiting.heard.steps == []
    assert_same_image(model, plain)

    waiting.job.stop(Unavailable("STOPPED", "no more"))
    loop.run()

    assert isinstance(waiting.heard.end, Unavailable)
    assert loop.steps.idle and loop.steps.next_deadline() is None


@pytest.mark.slow
@given(
    late=st.sets(st.integers(0, 5)), lost_at=st.none() | st.integers(0, 5), busy=st.booleans(), others=st.integers(0, 2)
)
@settings(max_examples=15, deadline=None)
def test_whatever_becomes_of_the_peer_the_image_is_the_same(
    model: DiffusionModel, late: set[int], lost_at: int | None, busy: bool, others: int
) -> None:
    loop, peer = Loop(model, max_batch=3), Peer(Loop(model), late, lost_at, busy)
    added = [loop.add(replace(request(1), peer=peer)), *(loop.add(request(seed)) for seed in range(2, 2 + others))]

    for _ in range(60):
        loop.tick()
        loop.now += 0.05

    for one in added:
        assert one.heard.steps == [1, 2, 3, 4, 5, 6]
        assert_same_image(model, one)
