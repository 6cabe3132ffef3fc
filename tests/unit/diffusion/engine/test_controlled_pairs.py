"""Two engines compute the halves of images under ControlNets, each with the residuals of its row."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.families import NO_CONTROL, BatchKey, ControlResiduals, DenoiserInput, DiffusionModel
from pentimento.domain.errors import Unavailable
from pentimento.policies.latent_pairing import PairPace
from tests.unit.diffusion.engine.loops import Added, Loop, Scripted
from tests.unit.diffusion.engine.test_batches import assert_same_image, request
from tests.unit.diffusion.engine.test_loras import Late, finish
from tests.unit.diffusion.engine.test_pairing import TOLERANCE, Peer, seen_rows
from tests.unit.diffusion.engine.test_seams import residuals
from tests.unit.diffusion.specs import denoise_controlled

# Steps without control.
FREE = {4}
KEY = BatchKey(32, 32, guided=True)


def of_step(step_index: int) -> ControlResiduals:
    """Return different residuals for both rows."""
    return NO_CONTROL if step_index in FREE else residuals(step_index)


def row_of(both: ControlResiduals, row: int) -> ControlResiduals:
    mid = both.mid_block_residual
    down = tuple(tensor[row : row + 1] for tensor in both.down_block_residuals)
    return ControlResiduals(down, None if mid is None else mid[row : row + 1])


@dataclass
class RowSource:
    """The residuals of a step for the requested rows; for one row, those of `row`. Steps in `held` are late until the
    test removes them; from `lost_at` on there are none."""

    row: int
    held: set[int] = field(default_factory=set)
    lost_at: int | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)
    latents: dict[int, Tensor] = field(default_factory=dict)

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        self.asked.append((step_index, len(inputs.latents)))
        self.latents[step_index] = inputs.latents[:1].clone()

    def take(self, step_index: int) -> ControlResiduals | None:
        if self.lost_at is not None and step_index >= self.lost_at:
            raise Unavailable("CONTROLNET_LOST", "no replica answers")
        both = of_step(step_index)
        rows = self.asked[-1][1]
        return None if step_index in self.held else both if rows == 2 else row_of(both, self.row)


@dataclass
class Pair:
    """An image, the loop of its worker and the loop of its peer."""

    loop: Loop
    own: RowSource
    peer: Peer
    theirs: RowSource
    rows: list[int]
    asked: DenoisingRequest


def pair_of(model: DiffusionModel, **peer: Any) -> Pair:
    denoiser, rows = seen_rows(model)
    own, theirs = RowSource(1), RowSource(0)
    loop, other = Loop(model, denoiser=denoiser), Peer(Loop(model), control=theirs, **peer)
    return Pair(loop, own, other, theirs, rows, replace(request(1), control=own, peer=other))


def pace_of(loop: Loop) -> PairPace:
    """Return the pace of controlled images."""
    return loop.steps.pairs._paces[(KEY, True)]


def assert_controlled_image(model: DiffusionModel, added: Added) -> None:
    wanted = denoise_controlled(model, request(1), of_step)
    torch.testing.assert_close(added.finished.latent, wanted, rtol=0, atol=TOLERANCE)


def test_each_worker_requests_residuals_of_its_row(model: DiffusionModel) -> None:
    pair = pair_of(model)
    added = pair.loop.add(pair.asked)

    pair.loop.run()

    assert pair.own.asked == pair.theirs.asked == [(step, 1) for step in range(6)]
    # DDIM scales nothing: both rows see the same latents.
    assert all(torch.equal(pair.theirs.latents[step], pair.own.latents[step]) for step in range(6))
    assert added.finished.paired_step_count == 6
    assert_controlled_image(model, added)


@pytest.mark.parametrize(
    ("fault", "own", "peer", "paired"),
    [
        ({"late": {2}}, [(0, 1), (1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (5, 2)], [0, 1, 2], 2),
        ({"lost_at": 3}, [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (5, 2)], [0, 1, 2, 3], 3),
        ({"busy": True}, [(step, 2) for step in range(6)], [], 0),
    ],
    ids=["late", "lost", "busy"],
)
def test_worker_without_peer_asks_for_both_rows(
    model: DiffusionModel, fault: dict[str, Any], own: list[tuple[int, int]], peer: list[int], paired: int
) -> None:
    pair = pair_of(model, **fault)
    added = pair.loop.add(pair.asked)

    pair.loop.run()
    pair.loop.now = pair.loop.steps.next_deadline() or pair.loop.now
    pair.loop.run()

    assert (pair.own.asked, pair.peer.asked) == (own, peer)
    assert (pair.peer.left, added.finished.paired_step_count) == (1, paired)
    assert_controlled_image(model, added)
    # The wait for the peer is no part of a whole step.
    assert set(pace_of(pair.loop)._whole_s) == {0.0}


def test_lost_residuals_end_the_half_or_the_image_of_their_worker(model: DiffusionModel) -> None:
    pair, other = pair_of(model), pair_of(model)
    pair.theirs.lost_at = other.own.lost_at = 2
    added, lost = pair.loop.add(pair.asked), other.loop.add(other.asked)

    for one in (pair, other):
        one.loop.run()
        one.loop.now = 1000.0
        one.loop.run()

    assert pair.peer.half is not None and isinstance(pair.peer.half.heard.end, Unavailable)
    assert added.finished.paired_step_count == 2
    assert_controlled_image(model, added)
    assert isinstance(lost.heard.end, Unavailable) and lost.heard.end.reason == "CONTROLNET_LOST"


def test_the_first_half_of_a_peer_has_time_to_open_streams(model: DiffusionModel) -> None:
    pair = pair_of(model, late={0})
    added = pair.loop.add(pair.asked)
    pair.loop.run()

    assert pair.loop.steps.next_deadline() == pytest.approx(0.5)
    pair.peer.late.clear()
    pair.loop.run()

    assert added.finished.paired_step_count == 6


def test_request_with_late_loras_has_one_worker(model: DiffusionModel) -> None:
    pair = pair_of(model)
    added = pair.loop.add(replace(pair.asked, loras=Late((), late_asks=2, latest_step=3)))

    finish(pair.loop)

    assert (pair.peer.asked, added.finished.paired_step_count) == ([], 0)
    assert [rows for _, rows in pair.own.asked] == [2] * 6
    assert_controlled_image(model, added)


@pytest.mark.usefixtures("four_tried")
def test_a_controlled_step_takes_as_long_as_its_residuals_do(model: DiffusionModel) -> None:
    """A whole step waits two seconds for residuals, a paired one waits one: pairs pay, although a pass takes no
    time."""
    pair = pair_of(model)
    waits = {2: 2.0, 1: 1.0}
    taken, waited = pair.own.take, set()

    def taken_late(step_index: int) -> ControlResiduals | None:
        asked = pair.own.asked[-1]
        if asked in waited:
            return taken(step_index)
        waited.add(asked)
        pair.loop.now += waits[asked[1]]
        return None

    pair.own.take = taken_late  # type: ignore[method-assign]
    pair.loop.add(replace(pair.asked, peer=None))
    pair.loop.run()
    added = pair.loop.add(pair.asked)
    pair.loop.run()

    assert pace_of(pair.loop).gain == pytest.approx(2.0)
    assert added.finished.paired_step_count == 6


@pytest.mark.usefixtures("four_tried")
def test_slow_paired_steps_end_pairs_of_controlled_images_only(model: DiffusionModel) -> None:
    pair = pair_of(model)

    def seconds_pass(number: int, inputs: DenoiserInput, prediction: Tensor) -> Tensor:
        pair.loop.now += 1.0
        return prediction

    pair.loop.steps._denoiser = Scripted(model, seconds_pass)
    pair.loop.add(replace(pair.asked, peer=None))
    pair.loop.run()
    added = pair.loop.add(pair.asked)
    pair.loop.run()

    assert (added.finished.paired_step_count, pair.peer.left) == (5, 1)
    assert_controlled_image(model, added)
    assert pair.loop.steps.pairs.pays(KEY)


def test_controlled_and_plain_halves_share_passes(model: DiffusionModel) -> None:
    pair, leader = pair_of(model, late={0}), Loop(model)
    plain = Peer(pair.peer.loop, late={0})
    added = [pair.loop.add(pair.asked), leader.add(replace(request(2), peer=plain))]
    pair.loop.run()
    leader.run()

    pair.peer.loop.tick()

    assert pair.peer.loop.observer.sizes == [2]
    for peer, loop in ((pair.peer, pair.loop), (plain, leader)):
        peer.late = set()
        loop.run()
    assert_controlled_image(model, added[0])
    assert_same_image(model, added[1])


@pytest.mark.slow
@given(
    late=st.sets(st.integers(0, 5)),
    lost_at=st.none() | st.integers(0, 5),
    held=st.sets(st.integers(0, 5)),
    their_held=st.sets(st.integers(0, 5)),
)
@settings(max_examples=25, deadline=None)
def test_image_is_the_same_after_faults_of_peer_or_residuals(
    model: DiffusionModel, late: set[int], lost_at: int | None, held: set[int], their_held: set[int]
) -> None:
    pair = pair_of(model, late=late, lost_at=lost_at)
    pair.own.held, pair.theirs.held = held, their_held
    added = pair.loop.add(pair.asked)

    for tick in range(60):
        pair.loop.tick()
        pair.loop.now += 0.05
        if tick % 3 == 2 and held:
            held.pop()

    assert added.heard.steps == [1, 2, 3, 4, 5, 6]
    assert_controlled_image(model, added)
