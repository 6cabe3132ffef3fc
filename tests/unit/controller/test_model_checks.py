"""What may be registered as a model or a cascade, and what is said of the rest."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.diffusion.checkpoint import digest_files, file_sum
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import ModelCost
from pentimento.domain.models import DeviceCost, ModelFile, ReuseProfile
from services.controller.checks import check_cascade, check_variant, digest_of
from tests.unit.controller.registered import FILES, cascade, variant

GOOD = variant("light", ("gpu", 0.5))
WEIGHTS = FILES[1]


def test_a_model_and_cascades_of_two_and_three_pass() -> None:
    check_variant(GOOD)
    check_cascade(cascade("light", "heavy"))
    check_cascade(cascade("light", "middle", "heavy"))


def test_the_digest_is_the_one_that_workers_say(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "w.safetensors").write_bytes(b"weights")
    (tmp_path / "model_index.json").write_text("{}")
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    files = tuple(ModelFile(str(path.relative_to(tmp_path)), file_sum(path), 1) for path in paths)

    assert digest_of(files) == digest_files(tmp_path, paths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../light"}, "model.name: must be a registry name"),
        ({"name": "Light"}, "model.name: must be a registry name"),
        ({"name": ""}, "model.name: must be a registry name"),
        ({"digest": "sha256:1"}, "model.digest: must be sha256:<64 hex digits>"),
        ({"digest": "sha256:" + "0" * 64}, "model.digest: must be that of the files"),
        ({"family": ""}, "model.family: must be 1 to 256 printable characters, got none"),
        ({"licence": "x" * 257}, "model.licence: must be at most 256 printable"),
        ({"licence": "\x00"}, "model.licence: must be at most 256 printable"),
        ({"files": ()}, "model.files: must be 1 to 4096, got 0"),
        ({"files": FILES[:1] * 4097}, "model.files: must be 1 to 4096, got 4097"),
        ({"files": FILES * 2}, "model.files: must name each path once"),
        ({"files": FILES[:1]}, "model.files: must have weights: a .safetensors file at least"),
        ({"costs": (DeviceCost("", ModelCost("other", ((1, 1.0),))),)}, r"costs\[0\].cost.model: must be light"),
        ({"costs": (DeviceCost("", ModelCost("light", ())),)}, r"costs\[0\].cost.batches: must have at least one"),
        ({"costs": (DeviceCost("", ModelCost("light", ((1, math.nan),))),)}, r"run_s: must be between"),
        ({"costs": GOOD.costs * 65}, "model.costs: must be at most 64 devices, got 65"),
    ],
)
def test_a_model_that_could_not_be_served_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_variant(replace(GOOD, **change))


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd.json", "../w.safetensors", "a/../w.safetensors", "a//w.safetensors", "./w.safetensors"),
        *("a\\w.json", "w\x00.safetensors", "", ".", "a/" * 300 + "w.json", "w.json\n"),
    ],
)
def test_a_file_that_does_not_lie_below_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match=r"model.files\[0\].path: must"):
        check_variant(replace(GOOD, files=(replace(WEIGHTS, path=path),)))


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".ckpt", ".pkl", ".safetensors.bin", ".py", ""])
def test_weights_are_safetensors_alone(suffix: str) -> None:
    with pytest.raises(InvalidArgument, match=r"files\[1\].path: must end in .*: weights are safetensors"):
        check_variant(replace(GOOD, files=(WEIGHTS, replace(WEIGHTS, path=f"unet/w{suffix}"))))


@pytest.mark.parametrize(
    ("change", "message"), [({"sha256": "B" * 64}, "sha256: must be 64 hex"), ({"size_bytes": -1}, "size_bytes")]
)
def test_a_file_says_its_sum_and_size(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_variant(replace(GOOD, files=(replace(WEIGHTS, **change),)))


TWO = cascade("light", "heavy")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (("light",), "cascade.models: must be 2 to 8 models, got 1"),
        (tuple(f"m{number}" for number in range(9)), "cascade.models: must be 2 to 8 models, got 9"),
        (("light", "light"), "cascade.models: must name each model once"),
        (("light", "a>b"), r"cascade.models\[1\]: must be a registry name"),
        (("light", "middle", "heavy"), "cascade.handovers: must be 2, one for each model but the last, got 1"),
    ],
)
def test_a_cascade_has_models_and_one_handover_less(models: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_cascade(replace(TWO, models=models))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"discriminator": "light"}, "discriminator: must be the models of the discriminator's cascade"),
        ({"discriminator": "light>../heavy"}, "discriminator: must be the models"),
        ({"discriminator_digest": ""}, "discriminator_digest: must be sha256:"),
        ({"shares": (0.0, 1.0)}, "shares: must be 2 to 1024 points, a share for each threshold, got 3 and 2"),
        ({"thresholds": (), "shares": ()}, "shares: must be 2 to 1024 points"),
        ({"shares": (0.0, 0.9, 0.8)}, "shares: must ascend within 0 and 1"),
        ({"thresholds": (0.0, math.nan, 1.0)}, "thresholds: must ascend within 0 and 1"),
        ({"shares": (0.0, 0.5, 1.1)}, "shares: must ascend within 0 and 1"),
        ({"reuse_share": 1.0}, "reuse_share: must be at least 0 and below 1, got 1.0"),
        ({"reuse_profile": ReuseProfile("sha256:1", 0.95, "mean")}, "reuse_profile: must be absent"),
    ],
)
def test_a_handover_that_nothing_can_be_planned_with_is_refused_by_name(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=rf"cascade.handovers\[0\].{message}"):
        check_cascade(replace(TWO, handovers=(replace(TWO.handovers[0], **change),)))


@given(name=st.text(max_size=200), path=st.text(max_size=60))
def test_no_text_fails_otherwise_than_by_a_refusal(name: str, path: str) -> None:
    try:
        check_variant(replace(GOOD, name=name, files=(replace(WEIGHTS, path=path),)))
    except InvalidArgument as refused:
        assert refused.violations[0].field.startswith("model.")
