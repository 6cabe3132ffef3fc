"""Compare controlled images with diffusers' ControlNet pipelines: each family, one and three ControlNets, both halves
of the guidance and only the conditional half, shares of the schedule. `benchmarks.controlnet_golden` has more cases."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import (
    SIDE_PX,
    write_checkpoint,
    write_controlnet,
    write_flow_checkpoint,
    write_flow_controlnet,
    write_xl_checkpoint,
)
from lab.fixtures.controlled_generation import ControlledByDiffusers, ControlledByEngine, ControlledCase, conditions_for
from lab.fixtures.diffusers_reference import Case
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.generation import Scheduler
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

PROMPT, NEGATIVE = "a red circle", "blurred"
EVERYWHERE = ControlSetting()
EARLY = ControlSetting(scale=0.7, end_fraction=0.5)
LATE = ControlSetting(scale=1.3, start_fraction=0.4)
MIDDLE = ControlSetting(scale=0.5, start_fraction=0.2, end_fraction=0.8)


def sd(path: Path) -> tuple[Path, list[Path]]:
    model = write_checkpoint(path / "model", beta_schedule="scaled_linear")
    return model, [write_controlnet(path / f"control-{seed}", seed=seed) for seed in range(3)]


def sdxl(path: Path) -> tuple[Path, list[Path]]:
    model = write_xl_checkpoint(path / "model", beta_schedule="scaled_linear")
    return model, [write_controlnet(path / f"control-{seed}", xl=True, seed=seed) for seed in range(3)]


def sd3(path: Path) -> tuple[Path, list[Path]]:
    model = write_flow_checkpoint(path / "model", max_sequence_length=3)
    return model, [write_flow_controlnet(path / f"control-{seed}", seed=seed) for seed in range(3)]


def sd3_with_pooled_texts(path: Path, blocks: int) -> tuple[Path, list[Path]]:
    """Return a model with an autoencoder shift, and ControlNets with half as many blocks."""
    model = write_flow_checkpoint(path / "model", max_sequence_length=3, num_layers=2 * blocks)
    own = {"num_layers": blocks, "force_zeros_for_pooled_projection": False}
    return model, [write_flow_controlnet(path / f"control-{seed}", seed=seed, **own) for seed in range(3)]


FAMILIES = {"sd": sd, "sdxl": sdxl, "sd3": sd3}
THREE = (EARLY, LATE, MIDDLE)


def cases_for(schedulers: tuple[Scheduler, ...]) -> list[ControlledCase]:
    """Return cases of one ControlNet and three, without control in the first steps, and without guidance. Diffusion
    models also have a scheduler that scales the network's input."""
    guided = Case(PROMPT, NEGATIVE, schedulers[0], seed=3, steps=5)
    free = replace(guided, guidance_scale=1.0, steps=4)
    cases = [
        ControlledCase(guided, (EVERYWHERE,)),
        ControlledCase(guided, THREE),
        ControlledCase(guided, (LATE,)),
        ControlledCase(free, THREE),
    ]
    if Scheduler.EULER in schedulers:
        cases += [ControlledCase(replace(guided, scheduler=Scheduler.EULER, seed=5), (EVERYWHERE,))]
    return cases


@pytest.fixture(scope="module", params=FAMILIES)
def sides(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ControlledByDiffusers, ControlledByEngine]]:
    model, controlnets = FAMILIES[request.param](tmp_path_factory.mktemp(request.param))
    engine = ControlledByEngine(model, controlnets)
    yield ControlledByDiffusers(model, controlnets), engine
    engine.close()


def difference(sides: tuple[ControlledByDiffusers, ControlledByEngine], controlled: ControlledCase) -> float:
    conditions = conditions_for(len(controlled.settings), SIDE_PX, SIDE_PX)
    theirs, ours = (side.controlled(controlled, conditions) for side in sides)
    return float((theirs - ours).abs().max())


def test_controlled_latents_equal_those_of_diffusers(sides: tuple[ControlledByDiffusers, ControlledByEngine]) -> None:
    differences = {case: difference(sides, case) for case in cases_for(sides[1].model.info.schedulers)}

    assert all(value <= 1e-4 for value in differences.values()), differences


def test_controls_change_the_image(sides: tuple[ControlledByDiffusers, ControlledByEngine]) -> None:
    conditions = conditions_for(1, SIDE_PX, SIDE_PX)
    case = Case(PROMPT, NEGATIVE, sides[1].model.info.schedulers[0], seed=3, steps=4)
    settings = (EVERYWHERE, EARLY, ControlSetting(scale=0.0))
    always, early, never = (sides[1].controlled(ControlledCase(case, (one,)), conditions) for one in settings)

    assert float((always - never).abs().max()) > 0.01
    assert float((always - early).abs().max()) > 0.01


@pytest.mark.parametrize("blocks", [2, 7])
def test_a_flow_controlnet_with_pooled_texts_and_fewer_blocks_equals_diffusers(tmp_path: Path, blocks: int) -> None:
    model, controlnets = sd3_with_pooled_texts(tmp_path, blocks)
    engine = ControlledByEngine(model, controlnets)
    try:
        sides = (ControlledByDiffusers(model, controlnets), engine)
        case = Case(PROMPT, NEGATIVE, Scheduler.FLOW_MATCH_EULER, seed=3, steps=5)

        assert difference(sides, ControlledCase(case, THREE)) <= 1e-4
    finally:
        engine.close()


@pytest.mark.parametrize("kinds", [(3,), (0, 3), (5, 5, 1)])
def test_union_with_one_or_several_kinds_equals_diffusers(tmp_path: Path, kinds: tuple[int, ...]) -> None:
    """Several kinds are separate passes of one network; their residuals are added, as diffusers does for several
    networks."""
    model = write_xl_checkpoint(tmp_path / "model", beta_schedule="scaled_linear")
    controlnets = [write_controlnet(tmp_path / "union", xl=True, union=True)] * len(kinds)
    engine = ControlledByEngine(model, controlnets)
    try:
        sides = (ControlledByDiffusers(model, controlnets, union=True), engine)
        case = Case(PROMPT, NEGATIVE, Scheduler.EULER, seed=3, steps=4)

        assert difference(sides, ControlledCase(case, THREE[: len(kinds)], kinds=kinds)) <= 1e-4
    finally:
        engine.close()
