"""Names of models are names of the registry, or existing directories."""

import json
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.profiles.document import Profile, ProfileKind, profiles_to_json
from pentimento.supervisor.models import (
    DEFAULT_ENCODER,
    FEATURE_PROFILES,
    HANDOVER_PROFILES,
    PACKAGED_ENCODERS,
    PIPELINING_PROFILES,
    SELECTOR_PROFILES,
    THINNING_PROFILES,
    WEIGHTS,
    ModelDirectory,
    find_discriminator,
    find_encoder,
    find_image_encoder,
    find_loras,
    find_model,
    find_models,
    find_stored_model,
    with_shipped,
)
from tests.support.profiles import HANDOVER_PROFILE, LATENT_PROFILE, PIPELINING_PROFILE, STEPS_PROFILE, changed


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    (folder / "tiny-heavy").mkdir(parents=True)
    kinds = {"tiny-heavy": "pipeline", "tiny-clip": "dual_encoder", "tiny-lora-neon": "lora"}
    entries = [{"name": name, "kind": kind, "path": name} for name, kind in kinds.items()]
    (folder / "registry.json").write_text(json.dumps({"models": entries}))
    return folder


def test_registry_name_leads_to_its_directory(weights: Path) -> None:
    assert find_model("tiny-heavy", weights) == ModelDirectory("tiny-heavy", weights / "tiny-heavy")


@pytest.mark.parametrize(("folder", "name"), [("mine", "mine"), ("my model", "my-model")])
def test_find_model_of_directory_has_valid_name(weights: Path, tmp_path: Path, folder: str, name: str) -> None:
    (tmp_path / folder).mkdir()

    assert find_model(str(tmp_path / folder), weights) == ModelDirectory(name, tmp_path / folder)


@pytest.mark.parametrize("given", ["dreamshaper v8.safetensors", "dreamshaper v8"])
def test_find_model_of_a_file_is_named_without_suffix(weights: Path, tmp_path: Path, given: str) -> None:
    file = tmp_path / "dreamshaper v8.safetensors"
    file.touch()
    (tmp_path / "dreamshaper v8").mkdir()
    (tmp_path / "dreamshaper v8" / "model_index.json").touch()  # completes the file

    assert find_model(str(tmp_path / given), weights) == ModelDirectory("dreamshaper-v8", file)


@pytest.mark.parametrize("name", ["tiny-heavy", "{weights}/tiny-heavy"])
def test_a_digest_behind_a_model_is_the_one_that_it_must_have(weights: Path, name: str) -> None:
    digest = f"sha256:{'0a' * 32}"

    found = find_model(f"{name.format(weights=weights)}@{digest}", weights)

    assert found == ModelDirectory("tiny-heavy", weights / "tiny-heavy", digest)


def test_a_directory_may_have_an_at_sign_in_its_name(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "me@home").mkdir()

    assert find_model(f"{tmp_path}/me@home", weights) == ModelDirectory("me@home", tmp_path / "me@home")


@pytest.mark.parametrize("digest", ["sha256:", "sha256:12", f"sha256:{'0A' * 32}", f"sha256:{'0' * 65}"])
def test_wrong_digest_is_rejected(weights: Path, digest: str) -> None:
    with pytest.raises(InvalidArgument, match="64 hexadecimal digits"):
        find_model(f"tiny-heavy@{digest}", weights)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((name, "tiny-heavy") for name in ("unknown", "../weights/unknown", "tiny-heavy/../../..x")),
        ("tiny-clip", r"not a pipeline \(tiny-heavy\)"),
        ("tiny-lora-neon", r"not a pipeline \(tiny-heavy\)"),
    ],
)
def test_find_model_without_pipeline_lists_known_ones(weights: Path, name: str, why: str) -> None:
    with pytest.raises(NotFound, match=why):
        find_model(name, weights)


def test_an_encoder_is_a_name_among_the_dual_encoders(weights: Path) -> None:
    assert find_encoder("tiny-clip", weights) == ModelDirectory("tiny-clip", weights / "tiny-clip")
    for wrong, why in (("tiny-heavy", "is a pipeline, not a dual_encoder"), ("nobody", "is neither a directory nor")):
        with pytest.raises(NotFound, match=rf"{why}.* \(all-minilm-l6-v2, tiny-clip\)"):
            find_encoder(wrong, weights)


def test_find_image_encoder_refuses_sentence_encoder(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')

    with pytest.raises(InvalidArgument, match=r"image_encoder: must embed images.* is a sentence encoder"):
        find_image_encoder(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "siglip"}')
    assert find_image_encoder(str(tmp_path)).path == tmp_path
    assert find_image_encoder("tiny-clip", weights).name == "tiny-clip"


def test_an_encoder_of_a_package_lies_in_its_folder_and_is_not_imported(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "carried").mkdir()
    (tmp_path / "carried" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(PACKAGED_ENCODERS, "sentences", "carried")

    assert find_encoder("sentences") == ModelDirectory("sentences", tmp_path / "carried" / "model")


def test_an_encoder_of_a_package_that_is_not_installed_names_the_package(monkeypatch) -> None:
    monkeypatch.setitem(PACKAGED_ENCODERS, "sentences", "not_there_at_all")

    with pytest.raises(NotFound, match="package not-there-at-all, which is not installed"):
        find_encoder("sentences")


def test_without_a_registry_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="none in"):
        find_model("tiny-heavy", tmp_path)


def test_same_model_twice_is_refused(weights: Path) -> None:
    with pytest.raises(InvalidArgument, match="--workers"):
        find_models(("tiny-heavy", "tiny-heavy"), lambda name: find_model(name, weights))


def test_default_is_the_heavy_model(weights: Path) -> None:
    assert [model.name for model in find_models((), lambda name: find_model(name, weights))] == ["tiny-heavy"]


def test_loras_come_from_tiny_models_or_directory(weights: Path, tmp_path: Path) -> None:
    assert find_loras("", weights) is None
    assert find_loras("tiny", weights) == weights
    assert find_loras(str(tmp_path), weights) == tmp_path
    with pytest.raises(NotFound, match=r"adapters must be `tiny` or a directory, and there is no directory .*no-such"):
        find_loras("no-such", weights)


@pytest.fixture
def cascades(weights: Path) -> Path:
    models = {role: {"name": f"tiny-{role}"} for role in ("light", "heavy")}
    entries = [
        {
            "name": "reads",
            "kind": "discriminator",
            "path": "reads",
            "cascade": models,
            "encoder": {"name": "tiny-clip"},
        },
        {"name": "mine", "kind": "discriminator", "path": "mine", "cascade": models},
        {"name": "tiny-heavy", "kind": "pipeline", "path": "tiny-heavy"},
    ]
    (weights / "registry.json").write_text(json.dumps({"models": entries}))
    return weights


@pytest.mark.parametrize(("encoder", "found"), [("tiny-clip", "reads"), ("all-minilm-l6-v2", "mine")])
def test_registered_discriminator_reads_prompts_by_the_suites_encoder(cascades: Path, encoder: str, found: str) -> None:
    assert find_discriminator("", ("tiny-light", "tiny-heavy"), Path(encoder), cascades) == cascades / found


def test_a_discriminator_may_be_a_directory(cascades: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    assert find_discriminator(str(tmp_path / "other"), ("a", "b"), Path("e"), cascades) == tmp_path / "other"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", r"no discriminator of tiny-heavy and tiny-light .* --discriminator names"),
        ("tiny-heavy", r"is a pipeline, not a discriminator \(mine, reads\)"),
    ],
)
def test_find_discriminator_names_missing_part(cascades: Path, given: str, why: str) -> None:
    with pytest.raises(NotFound, match=why):
        find_discriminator(given, ("tiny-heavy", "tiny-light"), Path("e"), cascades)


REUSED = changed(STEPS_PROFILE, kind=ProfileKind.FEATURES)


@pytest.mark.parametrize(
    ("given", "shipped"),
    [
        ((), (THINNING_PROFILES, FEATURE_PROFILES, PIPELINING_PROFILES, HANDOVER_PROFILES, SELECTOR_PROFILES)),
        ((LATENT_PROFILE, HANDOVER_PROFILE), (THINNING_PROFILES, FEATURE_PROFILES, PIPELINING_PROFILES)),
        ((STEPS_PROFILE,), (FEATURE_PROFILES, PIPELINING_PROFILES, HANDOVER_PROFILES, SELECTOR_PROFILES)),
        ((LATENT_PROFILE, STEPS_PROFILE), (FEATURE_PROFILES, PIPELINING_PROFILES, HANDOVER_PROFILES)),
        ((PIPELINING_PROFILE, REUSED), (THINNING_PROFILES, HANDOVER_PROFILES, SELECTOR_PROFILES)),
    ],
)
def test_with_shipped_adds_kinds_that_are_not_given(
    given: tuple[Profile, ...], shipped: tuple[Path, ...], tmp_path: Path
) -> None:
    path = tmp_path / "own.json"
    path.write_text(profiles_to_json(*given))

    assert with_shipped([path], WEIGHTS / DEFAULT_ENCODER) == (path, *shipped)
    assert SELECTOR_PROFILES not in with_shipped([path], tmp_path)


def test_with_shipped_names_file_that_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text("{}")

    with pytest.raises(InvalidArgument, match=r"profiles: .*own\.json: format: must be 2, got None"):
        with_shipped([path], tmp_path)


DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize("name", ["mine", "FLUX.2-klein-4B"])
def test_find_stored_model_of_registered_name_has_its_digest(name: str) -> None:
    assert find_stored_model(name, lambda: {name: DIGEST}) == ModelDirectory(name, Path(name), DIGEST)


def test_find_stored_model_of_address_keeps_its_source() -> None:
    given = f"s3://bucket/path/My Model?endpoint=http://127.0.0.1:9@{DIGEST}"

    assert find_stored_model(given, dict) == ModelDirectory("My-Model", Path("My-Model"), DIGEST, f"My-Model={given}")


@pytest.mark.parametrize("given", ["s3://bucket/path", "s3://bucket/path@sha256:abc"])
def test_find_stored_model_of_address_without_digest_is_rejected(given: str) -> None:
    with pytest.raises(InvalidArgument, match="sha256"):
        find_stored_model(given, dict)


def test_find_stored_model_names_registered_models() -> None:
    with pytest.raises(NotFound, match="registered: mine, other"):
        find_stored_model("absent", lambda: {"other": DIGEST, "mine": DIGEST})
