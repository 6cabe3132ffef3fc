"""Test a gateway's selector profiles: read at start and after changes, and used only for their model and encoder."""

import logging
from pathlib import Path

import pytest

from pentimento.domain.cache import LookupCandidate
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import FromImage, FromLatent, FromNoise
from pentimento.policies.reuse_rules import NO_PAIR
from pentimento.profiles.document import ReuseKind, profiles_to_json
from pentimento.profiles.kinds import profile_name
from pentimento.profiles.rules import ThresholdRule
from pentimento.rpc import watched_file
from pentimento.service.followed_profiles import KEEPS_EARLIER
from tests.support.gateways import at_similarity, attempt, embedding, gateway_settings, running_gateway, scope
from tests.support.profiles import changed, reuse_step
from tests.unit.vectordb_gateway.test_lookup_profiles import PROFILE


def written(folder: Path, **changes: object) -> str:
    path = folder / "profiles"
    path.mkdir(exist_ok=True)
    (path / "latents.json").write_text(profiles_to_json(changed(PROFILE, **changes)))
    return str(path)


async def test_profiled_model_resumes_at_its_table_s_steps(tmp_path: Path) -> None:
    flags = ("--profiles", written(tmp_path))
    async with running_gateway(tmp_path, *flags) as gateway:
        other = await gateway.client.reserve(scope(model_digest="sha256:other"), attempt())
        grant = await gateway.client.reserve(scope(), attempt())
        assert other is None
        assert grant is not None
        assert [slot.resume_step for slot in grant.latents] == [5]
        await gateway.store(embedding(1), steps=(5,))

        near, far = await gateway.lookup(at_similarity(0.82)), await gateway.lookup(at_similarity(0.78))

    assert isinstance(near.start, FromLatent)
    assert near.start.resume_step == 5
    assert profile_name(PROFILE) in near.reason
    assert far.start == FromNoise()


async def test_image_is_refined_by_table_of_its_pair(tmp_path: Path) -> None:
    """One small model was profiled for two large ones, which permit its images from 0.8 and from 0.6 on."""
    of = {"model_digest": scope().model_digest, "start": ReuseKind.IMAGES}
    pairs = {"sha256:large": 0.8, "sha256:medium": 0.6}
    profiles = [
        changed(PROFILE, **of, reference=name, reference_digest=name, rows=(reuse_step(20, 80, 0.9, least, 0.5),))
        for name, least in pairs.items()
    ]
    path = tmp_path / "images.json"
    path.write_text(profiles_to_json(*profiles))
    async with running_gateway(tmp_path, "--profiles", str(path)) as gateway:
        await gateway.store(embedding(0, 1), image=embedding(1))
        references = (*pairs, scope().model_digest, "", "sha256:another")
        asked = [LookupCandidate(scope(), reference_model_digest=one) for one in references]
        far, near = [(await gateway.client.lookup(asked, at_similarity(one))).starts for one in (0.7, 0.85)]
        rows = await gateway.client.reuse_quality(scope().model_digest)

    assert [isinstance(one.start, FromImage) for one in far] == [False, True, False, False, False]
    assert [getattr(one.start, "reference_model_digest", None) for one in near] == [
        "sha256:large",
        "sha256:medium",
        "sha256:large",
        "sha256:large",
        None,
    ]
    assert near[-1].reason == f"miss: {NO_PAIR}"
    assert {row.reference_model_digest: row.similarity for row in rows} == pairs


@pytest.mark.parametrize(("rule", "least"), [("profile", 0.8), ("lower_bound", 0.8), ("mean", 0.5)])
async def test_profile_rule_chooses_among_profiles_of_one_model(tmp_path: Path, rule: str, least: float) -> None:
    averaging = changed(PROFILE, alpha=0.95, rule=ThresholdRule.MEAN, rows=(reuse_step(5, 80, mean=0.5),))
    path = tmp_path / "latents.json"
    path.write_text(profiles_to_json(averaging, PROFILE))
    async with running_gateway(tmp_path, "--profiles", str(path), "--profile-rule", rule) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        far, near = [(await gateway.lookup(at_similarity(least + above))).start for above in (-0.02, 0.02)]

    assert (type(far), type(near)) == (FromNoise, FromLatent)


async def test_profile_of_another_encoder_is_refused_by_digest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ("--profiles", written(tmp_path, encoder_digest="sha256:another"))
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1), steps=(5,))
    with caplog.at_level(logging.WARNING):
        async with running_gateway(tmp_path, *flags) as gateway:
            answer = await gateway.lookup(embedding(1))

    assert (answer.start, answer.reason) == (FromNoise(), "miss: no selector profile of this model")
    assert "made for encoder sha256:another, not sha256:encoder" in caplog.text


async def test_running_gateway_uses_new_profile_and_keeps_it_while_file_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)
    (tmp_path / "profiles").mkdir()
    async with running_gateway(tmp_path, "--profiles", str(tmp_path / "profiles")) as gateway:
        before = await gateway.client.reserve(scope(), attempt())
        written(tmp_path)
        await gateway.store(embedding(1), steps=(5,))
        found = await gateway.lookup(at_similarity(0.82))
        (tmp_path / "profiles" / "latents.json").write_text('{"format": 2, "profiles": [1]}')
        kept = await gateway.lookup(at_similarity(0.82))
        (tmp_path / "profiles" / "latents.json").unlink()
        removed = await gateway.lookup(at_similarity(0.82))

    assert before is None
    assert [type(one.start) for one in (found, kept, removed)] == [FromLatent, FromLatent, FromNoise]
    (problem,) = (record.problem for record in caplog.records if record.msg == KEEPS_EARLIER)  # type: ignore[attr-defined]
    assert "profiles: " in problem and "latents.json: profiles[0]: must be" in problem


def test_a_profile_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text("{}")
    settings = gateway_settings(tmp_path, "--profiles", str(path))

    with pytest.raises(InvalidArgument, match=r"wrong\.json: format: must be 2, got None"):
        settings.selection.reuse()
