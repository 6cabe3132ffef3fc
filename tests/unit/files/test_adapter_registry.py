import json
import re
from pathlib import Path
from typing import Any

import pytest

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.files.adapter_registry import RegisteredDepthModel, read_adapters, read_depth_model, sign_registry
from pentimento.files.signed_entries import TrustedEntries
from tests.support.logged import said_by
from tests.support.refusals import wrong_refusals
from tests.unit.files.test_signed_entries import Keys

DIGEST, BASE = "sha256:" + "a" * 64, "sha256:" + "b" * 64
NEON: dict[str, Any] = {"name": "neon", "kind": "lora", "family": "sd", "path": "neon", "digest": DIGEST}
SHIPPED = Path(__file__).parents[3] / "zoo" / "weights" / "registry.json"


def registry(folder: Path, *entries: Any) -> Path:
    (folder / "neon").mkdir(exist_ok=True)
    file = folder / "registry.json"
    file.write_text(json.dumps({"version": 1, "models": entries}))
    return file


def test_tiny_models_registry_has_its_loras_and_controlnets_and_nothing_else() -> None:
    found = read_adapters(SHIPPED)

    kinds = {name: registered.adapter.kind for name, registered in found.items()}
    assert kinds == {
        **{f"tiny-lora-{style}": AdapterKind.LORA for style in ("neon", "blueprint", "mosaic")},
        **{f"tiny-controlnet-{told}": AdapterKind.CONTROLNET for told in ("edges", "layout")},
    }
    neon = found["tiny-lora-neon"]
    heavy = next(entry for entry in json.loads(SHIPPED.read_text())["models"] if entry["name"] == "tiny-heavy")
    assert neon.adapter.changes(heavy["digest"], "stable_diffusion")
    assert (neon.directory / "pytorch_lora_weights.safetensors").is_file()


def test_one_without_a_base_is_for_its_family(tmp_path: Path) -> None:
    found = read_adapters(registry(tmp_path, NEON))

    assert found["neon"].adapter.changes("sha256:whatever", "stable_diffusion")
    assert not found["neon"].adapter.changes("sha256:whatever", "stable_diffusion_3")
    assert found["neon"].directory == tmp_path / "neon"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "../neon"}, "name"),
    ({"name": "Neon"}, "name"),
    ({"name": 7}, "name"),
    ({"family": ""}, "family"),
    ({"digest": "sha256:00"}, "digest"),
    ({"digest": None}, "digest"),
    ({"base": {"name": "heavy"}}, "base.digest"),
    ({"base": "heavy"}, "base"),
    *[({"path": path}, "path") for path in ("..", ".", "/etc", "../other", "neon/../..", "no", "ne\0on", "link")],
]


def test_wrong_entry_is_refused_by_its_field(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "other").mkdir()
    (folder / "link").symlink_to(tmp_path / "other")
    rows = [(NEON | changed, rf"models\[0\]\.{re.escape(field)}: ") for changed, field in WRONG]

    assert wrong_refusals(InvalidArgument, lambda entry: read_adapters(registry(folder, entry)), rows) == []


def test_read_adapters_missing_directory_is_skipped_where_it_may_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = registry(tmp_path, NEON, NEON | {"name": "gone", "path": "gone"})

    found = read_adapters(file, skip_missing=True)

    assert set(found) == {"neon"}
    assert [record.getMessage() for record in said_by("pentimento.files.adapter_registry", caplog)] == [
        f"gone is skipped: it has no directory in {tmp_path}"
    ]


def test_read_adapters_of_other_kinds_are_passed_over(tmp_path: Path) -> None:
    assert read_adapters(registry(tmp_path, NEON, {"kind": "lora"}), (AdapterKind.CONTROLNET,)) == {}


DEPTH: dict[str, Any] = {"name": "depth", "kind": "depth_model", "path": "neon", "digest": DIGEST}


def test_depth_model_is_read_from_its_entry(tmp_path: Path) -> None:
    assert read_depth_model(registry(tmp_path, NEON)) is None
    assert read_depth_model(registry(tmp_path, NEON, DEPTH)) == RegisteredDepthModel(tmp_path / "neon", DIGEST)
    assert read_depth_model(registry(tmp_path, DEPTH | {"path": "no"}), skip_missing=True) is None


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([DEPTH | {"path": "no"}], r"models\[0\]\.path: must be a directory in .*, got 'no'"),
        ([DEPTH | {"path": "../other"}], r"models\[0\]\.path: must lie in "),
        ([NEON, DEPTH | {"digest": "sha256:1"}], r"models\[1\]\.digest: must be sha256:<64 hex digits>"),
        ([DEPTH, DEPTH | {"name": "other"}], r"models\[1\]\.kind: must be depth_model once in a registry"),
    ],
)
def test_wrong_depth_model_is_refused_by_its_field(tmp_path: Path, entries: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_depth_model(registry(tmp_path, *entries))


def test_unsigned_depth_model_is_refused_if_keys_are_given(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    with pytest.raises(FailedPrecondition, match="its entry is not signed"):
        read_depth_model(registry(tmp_path, DEPTH), trusted=TrustedEntries(keys.public("first")))


def test_one_name_stands_for_one_adapter(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is there twice"):
        read_adapters(registry(tmp_path, NEON, NEON | {"kind": "controlnet"}))


def test_read_adapters_refuses_file_that_is_no_registry(tmp_path: Path) -> None:
    file = tmp_path / "registry.json"
    with pytest.raises(NotFound):
        read_adapters(file)
    for text in ("", "[]", "{}", '{"models": {}}', "\x80", "[" * 100_000):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(FailedPrecondition):
            read_adapters(file)


def test_signed_entries_are_verified_before_their_directory_is_read(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    trusted = TrustedEntries(keys.public("first"))
    file = registry(tmp_path, NEON, {**NEON, "name": "absent", "kind": "controlnet", "path": "absent"})

    with pytest.raises(FailedPrecondition) as unsigned:
        read_adapters(file, (AdapterKind.CONTROLNET,), trusted=trusted)
    signed = sign_registry(file, lambda entry: keys.signed("first", entry))
    with pytest.raises(InvalidArgument, match="must be a directory"):
        read_adapters(file, (AdapterKind.CONTROLNET,), trusted=trusted)
    found = read_adapters(file, (AdapterKind.LORA,), trusted=trusted)
    file.write_text(file.read_text().replace("sha256:aaa", "sha256:aab"))
    with pytest.raises(FailedPrecondition) as changed:
        read_adapters(file, (AdapterKind.LORA,), trusted=trusted)

    assert (unsigned.value.reason, unsigned.value.metadata["component"]) == ("UNSIGNED_ENTRY", "absent")
    assert signed == ["neon", "absent"]
    assert found.keys() == {"neon"}
    assert changed.value.reason == "BAD_SIGNATURE"
    assert json.loads(file.read_text())["version"] == 1


def test_registry_that_cannot_be_signed_is_unchanged(tmp_path: Path) -> None:
    file = registry(tmp_path, NEON, "no entry")
    before = file.read_bytes()

    with pytest.raises(InvalidArgument, match=r"models\[1\]: must be an object"):
        sign_registry(file, lambda entry: entry)
    with pytest.raises(NotFound):
        sign_registry(tmp_path / "absent.json", lambda entry: entry)

    assert file.read_bytes() == before
