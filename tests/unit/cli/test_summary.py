"""What `pentimento generate` says of a picture beside its provenance."""

from dataclasses import replace

import pytest

from pentimento.cli.generate import cascade_in_words
from pentimento.domain.generation import (
    CascadeStage,
    FromNoise,
    GenerationSpec,
    Provenance,
    Route,
    Scheduler,
)

STAGES = (CascadeStage("light", "d", 0.5), CascadeStage("heavy"))
SPEC = GenerationSpec("a circle", "", "light", 64, 64, 20, 4.0, Scheduler.DDIM, 1)
ROUTE = Route("r", FromNoise(), "light", "sha256:1", STAGES)
PICTURE = Provenance("q", SPEC, ROUTE, "sha256:1", "w1", 1, 1, 20, 0, "1")


@pytest.mark.parametrize(
    ("model", "confidence", "line"),
    [
        ("light", 0.834, "the picture of light was kept, the discriminator's confidence in it is 0.83"),
        ("light", None, "painted by light"),
        ("heavy", None, "painted by heavy, after light"),
    ],
)
def test_where_a_cascade_ended_is_said(model: str, confidence: float | None, line: str) -> None:
    picture = replace(PICTURE, spec=replace(SPEC, model=model), discriminator_confidence=confidence)

    assert cascade_in_words(picture) == [f"cascade light → heavy: {line}"]


def test_without_a_cascade_nothing_is_said_of_one() -> None:
    alone = replace(PICTURE, route=replace(ROUTE, stages=STAGES[:1]))

    assert cascade_in_words(alone) == []
