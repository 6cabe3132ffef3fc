"""Selector profiles of a gateway: read at its start, used for their model and encoder alone."""

import logging
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import FromLatent, FromNoise
from pentimento.profiles.document import profiles_to_json
from pentimento.profiles.kinds import profile_name
from tests.support.gateways import at_similarity, attempt, embedding, gateway_settings, running_gateway, scope
from tests.support.profiles import changed
from tests.unit.vectordb_gateway.test_lookup_profiles import PROFILE


def written(folder: Path, **changes: object) -> str:
    path = folder / "profiles"
    path.mkdir(exist_ok=True)
    (path / "latents.json").write_text(profiles_to_json(changed(PROFILE, **changes)))
    return str(path)


async def test_profiled_model_resumes_at_its_table_s_steps(tmp_path: Path) -> None:
    flags = ("--unprofiled-reuse", "no", "--profiles", written(tmp_path))
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


async def test_the_rule_of_the_tables_can_be_chosen(tmp_path: Path) -> None:
    flags = ("--profiles", written(tmp_path), "--profile-rule", "mean")
    async with running_gateway(tmp_path, *flags) as gateway:
        await gateway.store(embedding(1), steps=(5,))

        answer = await gateway.lookup(at_similarity(0.75))

    assert isinstance(answer.start, FromLatent)
    assert "by mean" in answer.reason


async def test_profile_of_another_encoder_is_refused_by_digest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ("--unprofiled-reuse", "no", "--profiles", written(tmp_path, encoder_digest="sha256:another"))
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1), steps=(5,))
    with caplog.at_level(logging.WARNING):
        async with running_gateway(tmp_path, *flags) as gateway:
            answer = await gateway.lookup(embedding(1))

    assert (answer.start, answer.reason) == (FromNoise(), "miss: no selector profile of this model")
    assert "made for encoder sha256:another, not sha256:encoder" in caplog.text


def test_a_profile_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text("{}")
    settings = gateway_settings(tmp_path, "--profiles", str(path))

    with pytest.raises(InvalidArgument, match=r"wrong\.json: format: must be 2 or 1"):
        settings.selection.reuse()
