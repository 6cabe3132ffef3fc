import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.adapters import Adapter, AdapterKind, adapter_name_for, is_adapter_name, is_digest

BASE, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@pytest.mark.parametrize("name", ["a", "tiny-lora-neon", "sd1.5_canny", "lora-000", "0", "a" * 128])
def test_a_registry_name_is_one(name: str) -> None:
    assert is_adapter_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "a/b", "a\\b", "/etc/passwd", "%2e%2e", "a..b", ".a", "a.", "-a", "a-", "a--b"),
        *("a\0", "a\n", "a b", "Neon", "NEON", "néon", "neon\u0301", "ｎeon", "ⅳ", "²", "٣", "neon\u200b", "a" * 129),
    ],
)
def test_what_could_be_taken_for_a_path_or_for_another_name_is_none(name: str) -> None:
    assert not is_adapter_name(name)


@given(st.text(max_size=20))
def test_a_name_is_the_same_in_every_case_and_holds_no_separator(name: str) -> None:
    if is_adapter_name(name):
        assert name == name.lower() and name.isascii()
        assert not set(name) & set("/\\%:\0") and ".." not in name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("neon", "neon"),
        ("sd_xl-v1.0", "sd_xl-v1.0"),
        ("Neon Style", "neon-style"),
        ("My Style__v2 (final)", "my-style_v2-final"),
        ("Étude n°5", "etude-n5"),
        ("..\\evil//x", "evil-x"),
        ("-_-", f"adapter-{hashlib.sha256(b'-_-').hexdigest()[:8]}"),
        ("水墨", f"adapter-{hashlib.sha256('水墨'.encode()).hexdigest()[:8]}"),
        ("a" * 127 + "-b", "a" * 127),
    ],
)
def test_name_of_a_file_becomes_the_nearest_registry_name(text: str, name: str) -> None:
    assert adapter_name_for(text) == name


@given(st.text(max_size=200))
def test_derived_name_is_a_registry_name_and_stays(text: str) -> None:
    name = adapter_name_for(text)

    assert is_adapter_name(name)
    assert adapter_name_for(name) == name


@pytest.mark.parametrize(
    ("base_digest", "family", "changes"),
    [(BASE, "x", True), (OTHER, "sd", False), ("", "sd", True), ("", "sdxl", False)],
)
def test_an_adapter_changes_its_base_or_every_model_of_its_family(base_digest: str, family: str, changes: bool) -> None:
    adapter = Adapter("neon", AdapterKind.LORA, OTHER, family, base_digest)

    assert adapter.changes(BASE, "sd") is changes


@pytest.mark.parametrize(
    "text", ["", "sha256:", "sha256:" + "A" * 64, "sha256:" + "a" * 63, "sha256:" + "a" * 64 + "\n"]
)
def test_only_a_whole_digest_is_one(text: str) -> None:
    assert is_digest(BASE)
    assert not is_digest(text)
