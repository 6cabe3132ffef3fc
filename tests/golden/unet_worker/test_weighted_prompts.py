"""Compare latents of weighted and of long prompts, through the real service, with diffusers' pipelines. Diffusers gets
text states from a second implementation of the syntax."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import (
    T5_TOKENS,
    with_uneven_norms,
    write_checkpoint,
    write_flow_checkpoint,
    write_xl_checkpoint,
)
from lab.fixtures.diffusers_reference import Case
from pentimento.domain.generation import Scheduler
from pentimento.domain.prompt_syntax import PromptSyntax
from tests.golden.unet_worker.comparison import compare
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "SD": write_checkpoint,
    "XL": write_xl_checkpoint,
    "flow without T5": write_flow_checkpoint,
    "flow with T5": partial(write_flow_checkpoint, t5=True, max_sequence_length=T5_TOKENS),
}


def a1111_cases(schedulers: Sequence[Scheduler]) -> list[Case]:
    """The fixtures' encoders take 14 tokens, a token for each letter."""
    weighted = Case(
        "a (red:1.4) [dot]", "(grey)", schedulers[0], seed=1, steps=3, guidance_scale=3.0,
        prompt_syntax=PromptSyntax.A1111,
        parts=(("a ", 1.0), ("red", 1.4), (" ", 1.0), ("dot", 1 / 1.1)),
        negative_parts=(("grey", 1.1),),
    )  # fmt: skip
    long = replace(
        weighted,
        prompt="(small:1.2), red, circle BREAK on a black ground",
        parts=(("small", 1.2), (", red, circle", 1.0), None, ("on a black ground", 1.0)),
    )
    long_negative = replace(
        weighted,
        negative_prompt="blurred and (very small:0.5)",
        negative_parts=(("blurred and ", 1.0), ("very small", 0.5)),
    )
    plain = replace(weighted, prompt="a red dot", parts=(("a red dot", 1.0),), negative_prompt="", negative_parts=())
    return [weighted, long, replace(long, guidance_scale=1.0), long_negative, plain]


def compel_cases(schedulers: Sequence[Scheduler]) -> list[Case]:
    weighted = Case(
        "a (red)1.4 big-- dot", "(grey)0.5", schedulers[0], seed=1, steps=3, guidance_scale=3.0,
        prompt_syntax=PromptSyntax.COMPEL,
        parts=(("a ", 1.0), ("red", 1.4), ("big", 0.81), ("dot", 1.0)),
        negative_parts=(("grey", 0.5),),
    )  # fmt: skip
    long = replace(
        weighted,
        prompt="small++ circles on (a black)0.6 (dim)0.2 ground",
        parts=(("small", 1.21), ("circles on", 1.0), ("a black", 0.6), ("dim", 0.2), ("ground", 1.0)),
        negative_prompt="",
        negative_parts=(),
    )
    return [weighted, long, replace(weighted, prompt="a red dot", parts=(("a red dot", 1.0),))]


CASES = {"a1111": a1111_cases, "compel": compel_cases}


@pytest.mark.parametrize("syntax", CASES)
@pytest.mark.parametrize("kind", CHECKPOINTS)
async def test_weighted_latents_equal_those_of_diffusers(kind: str, syntax: str, tmp_path: Path) -> None:
    count, differences = await compare(with_uneven_norms(CHECKPOINTS[kind](tmp_path / "model")), CASES[syntax])

    assert len(differences) == count
    assert all(value <= 1e-4 for value in differences.values()), differences
