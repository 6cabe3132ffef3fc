"""Test the choice of benchmarks' profiles and rows."""

import pytest

from benchmarks.chosen import only
from benchmarks.thinning import plain_profile
from pentimento.domain.errors import FailedPrecondition, NotFound


def test_only_returns_single_match() -> None:
    assert only(iter([7]), "number") == 7


def test_only_rejects_none_and_several() -> None:
    with pytest.raises(NotFound, match="no profile of tiny found"):
        only([], "profile of tiny")
    with pytest.raises(FailedPrecondition, match="2 found, expected one: profile of tiny"):
        only([1, 2], "profile of tiny")


@pytest.mark.parametrize("model", ["tiny-flow", "tiny-heavy", "tiny-light"])
def test_plain_profile_has_no_adapters(model: str) -> None:
    """`tiny-heavy` has seven more, with LoRAs, and their files come first."""
    profile = plain_profile(model)

    assert (profile.of.model, profile.of.adapters) == (model, ())
