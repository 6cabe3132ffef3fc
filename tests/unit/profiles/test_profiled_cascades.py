"""Apply hand-over profiles to registered cascades, and reject wrong files."""

import hashlib
import json
from typing import Any

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import CascadeVariant, Handover, ReuseProfile
from pentimento.profiles.catalogue import ReusePromise, with_profiled_shares
from pentimento.profiles.document import profiles_to_json
from pentimento.profiles.rules import ThresholdRule
from tests.support.profiles import HANDOVER_PROFILE as PROFILE
from tests.support.profiles import HANDOVER_ROWS as ROWS
from tests.support.profiles import changed

TEXT = profiles_to_json(PROFILE)
DIGESTS = {"light": "sha256:l", "middle": "sha256:m", "heavy": "sha256:h"}
ASKED = ReusePromise()


def cascade(*models: str, reuse_share: float = 0.0) -> CascadeVariant:
    handover = Handover("a>b", "sha256:d", (0.0, 1.0), (0.0, 1.0), reuse_share)
    return CascadeVariant(models, (handover,) * (len(models) - 1))


TWO = cascade("light", "heavy")


@pytest.mark.parametrize(
    ("rule", "share", "named"),
    [(None, 0.2, "lower_bound"), (ThresholdRule.MINIMUM, 0.1, "minimum"), (ThresholdRule.MEAN, 0.2, "mean")],
)
def test_share_follows_rule_of_deployment(rule: ThresholdRule | None, share: float, named: str) -> None:
    """The file's own rule needs 99 of 100; only in the first row all keep it."""
    (handover,) = with_profiled_shares(TWO, [TEXT], DIGESTS, ReusePromise(0.9, rule)).handovers

    digest = f"sha256:{hashlib.sha256(TEXT.encode()).hexdigest()}"
    assert (handover.reuse_share, handover.reuse_profile) == (share, ReuseProfile(digest, 0.95, named))


def test_profile_applies_to_hand_over_with_its_digests() -> None:
    later = profiles_to_json(changed(PROFILE, reference_digest="sha256:m"))
    three = cascade("light", "middle", "heavy", reuse_share=0.0)

    first, second = with_profiled_shares(three, [later], DIGESTS, ASKED).handovers

    assert first == three.handovers[0]
    assert second.reuse_share == 0.2 and second.reuse_profile is not None


def test_every_hand_over_may_have_a_profile_in_any_order() -> None:
    earlier = profiles_to_json(changed(PROFILE, model_digest="sha256:m", rows=ROWS[1:2]))
    later = profiles_to_json(changed(PROFILE, reference_digest="sha256:m"))

    found = with_profiled_shares(cascade("light", "middle", "heavy"), [later, earlier], DIGESTS, ASKED)

    assert [each.reuse_share for each in found.handovers] == [0.1, 0.2]


def test_a_pair_that_bears_nothing_is_registered_as_measured() -> None:
    (handover,) = with_profiled_shares(
        TWO, [profiles_to_json(changed(PROFILE, rows=ROWS[3:]))], DIGESTS, ASKED
    ).handovers

    assert handover.reuse_share == 0.0 and handover.reuse_profile is not None


def test_without_a_profile_a_cascade_is_as_it_was_stated() -> None:
    stated = cascade("light", "heavy", reuse_share=0.4)

    assert with_profiled_shares(stated, [], DIGESTS, ASKED) == stated


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_digest": "sha256:x"},
            r"handover_profiles\[0\].of.model_digest: must be that of heavy, which comes after light, as it is "
            "registered: sha256:h; measured was sha256:x",
        ),
        (
            {"reference_digest": "sha256:x"},
            r"handover_profiles\[0\].of.reference_digest: must be that of a model which another comes after, as it is "
            "registered: light sha256:l; measured was sha256:x",
        ),
        # The last model of a cascade has no successor.
        (
            {"reference_digest": "sha256:h", "model_digest": "sha256:l"},
            r"handover_profiles\[0\].of.reference_digest: must be",
        ),
        ({"alpha": 0.9}, r"handover_profiles\[0\].asked.alpha: must be at least 0.95, .*, got 0.9"),
        ({"rows": ()}, r"handover_profiles\[0\].profiles\[0\].rows: must be 1 to 100, got 0"),
    ],
)
def test_a_profile_that_promises_something_else_is_refused_by_its_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        with_profiled_shares(TWO, [profiles_to_json(changed(PROFILE, **change))], DIGESTS, ASKED)


def row(**fields: object) -> str:
    document = json.loads(TEXT)
    rows = document["profiles"][0]["rows"]
    document["profiles"][0]["rows"] = [{**rows[0], **fields}]
    return json.dumps(document)


PLACE = r"handover_profiles\[0\]\.profiles\[0\]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"handover_profiles\[0\]: must be JSON"),
        ('{"format": 3}', r"handover_profiles\[0\].format: must be 2, got 3"),
        (row(at={"reuse_share": 1.1}), rf"{PLACE}.rows\[0\].at.reuse_share: must be at least 0 and at most 1"),
        ('{"format": 2, "profiles": []}', r"handover_profiles\[0\]: must be one profile of a hand-over"),
        (" " * 65_537, r"handover_profiles\[0\]: must be at most 65536 bytes, got 65537"),
        # A character of two bytes: the limit is one of bytes.
        ("é" * 32_769, r"handover_profiles\[0\]: must be at most 65536 bytes, got 65538"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_by_its_field(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        with_profiled_shares(TWO, [text], DIGESTS, ASKED)


def test_a_file_of_the_largest_size_is_read() -> None:
    assert with_profiled_shares(TWO, [TEXT.ljust(65_536)], DIGESTS, ASKED).handovers[0].reuse_share == 0.2


def test_hand_over_has_one_profile_or_stated_share() -> None:
    with pytest.raises(InvalidArgument, match=r"cascade.handovers\[0\].reuse_share: must be 0 where a profile says it"):
        with_profiled_shares(cascade("light", "heavy", reuse_share=0.4), [TEXT], DIGESTS, ASKED)
    three = {**DIGESTS, "middle": "sha256:h"}
    with pytest.raises(InvalidArgument, match=r"handover_profiles\[1\]: must be the only one between light and middle"):
        with_profiled_shares(cascade("light", "middle", "heavy"), [TEXT, TEXT], three, ASKED)
    with pytest.raises(InvalidArgument, match=r"handover_profiles: must be at most 1, one for a hand-over, got 2"):
        with_profiled_shares(TWO, [TEXT, TEXT], DIGESTS, ASKED)


def test_more_than_a_profile_promises_is_not_read_from_it() -> None:
    asked = ReusePromise(alpha=0.951)
    with pytest.raises(InvalidArgument, match=r"alpha: must be at least 0.951, .* \(--profile-alpha\), got 0.95"):
        with_profiled_shares(TWO, [TEXT], DIGESTS, asked)
