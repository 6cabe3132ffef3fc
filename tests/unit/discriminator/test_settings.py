"""Find the discriminators of the settings, and skip missing ones."""

import json
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from services.discriminator.settings import DiscriminatorSettings


def settings(**own: object) -> DiscriminatorSettings:
    return DiscriminatorSettings(RpcServerSettings(), RpcChannelSettings(), **own)  # type: ignore[arg-type]


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """Write a registry with discriminators for a>B, twice, and B>c; the last has no directory."""
    (tmp_path / "first").mkdir()
    entries = [
        {"kind": "discriminator", "path": path, "cascade": {"light": {"name": light}, "heavy": {"name": heavy}}}
        for path, light, heavy in (("first", "a", "B"), ("second", "a", "B"), ("gone", "B", "c"))
    ]
    file = tmp_path / "registry.json"
    file.write_text(json.dumps({"models": [{"kind": "pipeline", "path": "a"}, *entries]}))
    return file


@pytest.mark.parametrize(
    ("cascade", "cascades", "skip_missing", "found", "missing"),
    [
        (("a", "B"), (), False, {"a>B": "first"}, ""),
        (("a", "B", "c"), (), True, {"a>B": "first"}, "no discriminator of B>c"),
        (("a", "B"), ("a>B={}/own",), False, {"a>B": "own"}, ""),
        (("x", "y"), (), True, {}, "no discriminator of x>y"),
        ((), (), True, {}, "no cascade"),
    ],
)
def test_directories_registry_and_own_are_found(
    registry: Path,
    cascade: tuple[str, ...],
    cascades: tuple[str, ...],
    skip_missing: bool,
    found: dict[str, str],
    missing: str,
) -> None:
    own = tuple(one.format(registry.parent) for one in cascades)

    given = settings(cascade=cascade, cascades=(*own, str(registry)), skip_missing=skip_missing)

    assert given.directories() == {pair: registry.parent / name for pair, name in found.items()}
    assert given.missing == missing


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({}, "must name a discriminator"),
        ({"cascade": ("x", "y")}, "--cascade x>y: no discriminator of it is in"),
        ({"cascades": ("x>y",)}, "--cascades must be LIGHT>HEAVY=DIR or a registry, got 'x>y'"),
        ({"cascades": ("x=d",)}, "--cascades must be LIGHT>HEAVY=DIR or a registry, got 'x=d'"),
        ({"classifiers": ("text=d",)}, "--classifiers must be prompt=DIR and image=DIR, got 'text=d'"),
        ({"classifiers": ("prompt",)}, "--classifiers must be prompt=DIR and image=DIR, got 'prompt'"),
        ({"classifiers": ("image=/", "image=/")}, "--classifiers names image twice"),
        ({"classifiers": ("prompt=/", "image=/nonexistent")}, "--classifiers image=/nonexistent: is no directory"),
        ({"cascade": ("a", "b"), "expected_digest": "sha256:1"}, "--expected-digest must be empty or any"),
    ],
)
def test_settings_without_a_discriminator_are_rejected(registry: Path, own: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings(**{"cascades": (str(registry),), **own})


def test_classifier_directories_missing_one_is_skipped_where_allowed(tmp_path: Path) -> None:
    both = (f"prompt={tmp_path}", "image=/nonexistent")

    assert settings(classifiers=both[:1]).classifier_directories() == {"prompt": tmp_path}
    assert settings(classifiers=both, skip_missing=True).classifier_directories() == {"prompt": tmp_path}


def test_registry_with_discriminator_without_cascade_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "registry.json"
    file.write_text(json.dumps({"models": [{"kind": "discriminator", "path": "d"}]}))

    with pytest.raises(InvalidArgument, match="must have a light and a heavy model with a name"):
        settings(cascade=("a", "b"), cascades=(str(file),))
