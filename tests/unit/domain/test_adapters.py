import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.adapters import Adapter, AdapterKind, adapter_name_for, is_adapter_name, is_digest

BASE, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


GOOD = ("a", "tiny-lora-neon", "sd1.5_canny", "lora-000", "0", "a" * 128)
# Each could be taken for a path or for another name.
BAD = (
    *("", ".", "..", "../x", "a/b", "a\\b", "/etc/passwd", "%2e%2e", "a..b", ".a", "a.", "-a", "a-", "a--b"),
    *("a\0", "a\n", "a b", "Neon", "NEON", "néon", "neon\u0301", "ｎeon", "ⅳ", "²", "٣", "neon\u200b", "a" * 129),
)


def test_is_adapter_name_takes_registry_names_only() -> None:
    assert [name for name in (*GOOD, *BAD) if is_adapter_name(name)] == list(GOOD)


@given(st.text(max_size=20))
def test_is_adapter_name_of_any_text_is_lower_case_without_separators(name: str) -> None:
    if is_adapter_name(name):
        assert name == name.lower() and name.isascii()
        assert not set(name) & set("/\\%:\0") and ".." not in name


NAMES_OF_FILES = {
    "neon": "neon",
    "sd_xl-v1.0": "sd_xl-v1.0",
    "Neon Style": "neon-style",
    "My Style__v2 (final)": "my-style_v2-final",
    "Étude n°5": "etude-n5",
    "..\\evil//x": "evil-x",
    "-_-": f"adapter-{hashlib.sha256(b'-_-').hexdigest()[:8]}",
    "水墨": f"adapter-{hashlib.sha256('水墨'.encode()).hexdigest()[:8]}",
    "a" * 127 + "-b": "a" * 127,
}


def test_adapter_name_for_file_is_nearest_registry_name() -> None:
    assert {text: adapter_name_for(text) for text in NAMES_OF_FILES} == NAMES_OF_FILES


@given(st.text(max_size=200))
def test_adapter_name_for_any_text_is_valid_and_stable(text: str) -> None:
    name = adapter_name_for(text)

    assert is_adapter_name(name)
    assert adapter_name_for(name) == name


@pytest.mark.parametrize(
    ("base_digest", "family", "changes"),
    [(BASE, "x", True), (OTHER, "sd", False), ("", "sd", True), ("", "sdxl", False)],
)
def test_adapter_changes_its_base_or_its_family(base_digest: str, family: str, changes: bool) -> None:
    adapter = Adapter("neon", AdapterKind.LORA, OTHER, family, base_digest)

    assert adapter.changes(BASE, "sd") is changes


def test_is_digest_takes_whole_digests_only() -> None:
    others = ("", "sha256:", "sha256:" + "A" * 64, "sha256:" + "a" * 63, "sha256:" + "a" * 64 + "\n")

    assert [text for text in (BASE, *others) if is_digest(text)] == [BASE]
