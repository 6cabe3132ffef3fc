"""Derive from every directory a model name that an instance can have."""

from pentimento.domain.models import derived_name, is_model_name
from services.controller.checks import check_instance

NAMES = {
    "mine": "mine",
    "me@home_1.5": "me@home_1.5",
    "Realistic Vision (v5.1) [fp16]": "Realistic-Vision-v5.1-fp16",
    "a,b": "a-b",
    "modèle:été": "modele-ete",
    ".hidden": "hidden",
    "模型": "model-c98e118e",
    "x" * 64: "x" * 64,
    "x" * 200: f"{'x' * 55}-aa20c23e",
}


def test_derived_name_of_any_directory_is_valid() -> None:
    assert {directory: derived_name(directory) for directory in NAMES} == NAMES
    for name in NAMES.values():
        assert is_model_name(name)
        check_instance(f"{name}-63", 1)


def test_is_model_name_rejects_other_names() -> None:
    names = ("", ".hidden", "a,b", "a>b", "a/b", "../a", "light-", "modèle", "a\n", "x" * 65)

    assert [name for name in names if is_model_name(name)] == []
