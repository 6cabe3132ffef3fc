"""Test a directory of LoRAs: the names that its files get, and rejected files."""

import json
import logging
from pathlib import Path

import pytest
import torch

from lab.fixtures.lora_files import write_tensors
from pentimento.diffusion.loras import BaseLayers, digest_lora
from pentimento.domain.adapters import Adapter, AdapterKind, RejectedAdapter
from pentimento.files.signed_entries import TrustedEntries
from services.unet_worker.adapters.lora_directory import LoraDirectory, open_lora_directory
from services.unet_worker.device_backend import HeldAdapters
from tests.unit.files.test_signed_entries import Keys

BASE = BaseLayers("stable_diffusion", "unet", {"unet": {"proj": (6, 8)}})


def write_lora(path: Path, number: float = 1.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    factors = {
        "unet.proj.lora_A.weight": torch.full((2, 8), float(number)),
        "unet.proj.lora_B.weight": torch.ones(6, 2),
    }
    return write_tensors(path, factors)


def opened(directory: Path, trusted: TrustedEntries | None = None) -> LoraDirectory:
    return open_lora_directory(directory, "sha256:model", BASE, torch.float32, dict, trusted=trusted)


def names(directory: Path) -> list[str]:
    return sorted(adapter.name for adapter in opened(directory).adapters)


def test_file_names_become_registry_names_that_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, file in enumerate(
        ("Neon.safetensors", "neon.safetensors", "my style__v2.SafeTensors", "a_b.safetensors")
    ):
        write_lora(tmp_path / file, number)

    with caplog.at_level(logging.INFO):
        assert names(tmp_path) == ["a_b", "my-style_v2", "neon", "neon-2"]

    assert "the LoRA of my style__v2.SafeTensors is served as my-style_v2" in caplog.messages
    assert "the LoRA of Neon.safetensors is served as neon-2" in caplog.messages
    assert len([message for message in caplog.messages if "is served as" in message]) == 2


def test_folders_of_other_adapters_have_no_loras(tmp_path: Path) -> None:
    for name in ("embeddings/word", "ip-adapters/style", "embeddings", "ink/a"):
        write_lora(tmp_path / f"{name}.safetensors")

    assert names(tmp_path) == ["embeddings", "ink"]


def test_folder_of_several_loras_serves_each(tmp_path: Path) -> None:
    for number, file in enumerate(("pytorch_lora_weights", "Epoch 2", "epoch-3")):
        write_lora(tmp_path / "ink" / f"{file}.safetensors", number)
    write_lora(tmp_path / "alone" / "whatever.safetensors", 7.0)
    for number, file in enumerate(("a", "b"), 8):
        write_lora(tmp_path / "Two" / f"{file}.safetensors", number)

    found = opened(tmp_path)

    assert names(tmp_path) == ["alone", "ink", "ink-epoch-2", "ink-epoch-3", "two", "two-b"]
    downs = {one.name: found.read(one.digest).components["unet"]["proj"].down[0, 0].item() for one in found.adapters}
    assert downs == {"ink": 0.0, "ink-epoch-2": 1.0, "ink-epoch-3": 2.0, "alone": 7.0, "two": 8.0, "two-b": 9.0}


def test_loras_without_a_signed_entry_are_rejected_if_entries_must_be_signed(tmp_path: Path) -> None:
    keys, folder = Keys(tmp_path), tmp_path / "loras"
    trusted = TrustedEntries(keys.public("first"))
    entries = [
        {"name": name, "kind": "lora", "path": name, "digest": digest_lora(write_lora(folder / name / "l.safetensors"))}
        for name in ("signed", "changed", "unsigned")
    ]
    without = opened(folder, trusted)
    signed, changed = (keys.signed("first", entry) for entry in entries[:2])
    document = {"models": [signed, {**changed, "licence": "MIT"}, entries[2]]}
    (folder / "registry.json").write_text(json.dumps(document))

    found = opened(folder, trusted)

    assert [adapter.name for adapter in found.adapters] == ["signed"]
    assert {one.name: one.reason for one in found.rejected} == {
        "changed": "BAD_SIGNATURE",
        "unsigned": "UNSIGNED_ENTRY",
    }
    # Files without a registry have no entries.
    assert {one.reason for one in without.rejected} == {"UNSIGNED_ENTRY"} and not without.adapters
    assert len(opened(folder).adapters) == 3


def test_unusable_file_is_rejected_with_reason(tmp_path: Path) -> None:
    write_lora(tmp_path / "good.safetensors")
    write_tensors(tmp_path / "oft.safetensors", {"lora_unet_proj.oft_blocks": torch.zeros(4, 2, 2)})
    write_tensors(tmp_path / "Other One.safetensors", {"unet.none.lora_A.weight": torch.zeros(4, 2)})

    found = opened(tmp_path)

    assert [adapter.name for adapter in found.adapters] == ["good"]
    mismatch = (
        "Other One.safetensors: of 1 keys 1 match no layer of this stable_diffusion model: 'unet.none.lora_A.weight'"
    )
    form = "oft.safetensors: it is OFT, and LoRAs, LoHas and LoKrs are read"
    assert set(found.rejected) == {
        RejectedAdapter("other-one", AdapterKind.LORA, "LORA_MISMATCH", mismatch),
        RejectedAdapter("oft", AdapterKind.LORA, "UNSUPPORTED_LORA", form),
    }


def test_registry_entry_names_a_file_or_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lora(tmp_path / "set" / "a.safetensors")
    write_lora(tmp_path / "set" / "b.safetensors", 2.0)
    entries = [
        {"kind": "lora", "name": "ink", "path": "set"},
        {"kind": "lora", "name": "second", "path": "set/b.safetensors"},
        {"kind": "lora", "name": "Bad Name", "path": "set"},
    ]
    (tmp_path / "registry.json").write_text(json.dumps({"models": entries}))

    assert names(tmp_path) == ["ink", "second"]
    assert "of its folder b.safetensors are not served: give each an entry" in caplog.text
    assert "'Bad Name' is no registry name; call it 'bad-name' in registry.json" in caplog.text


def lora(name: str) -> Adapter:
    return Adapter(name, AdapterKind.LORA, f"sha256:{name}", "sd")


def test_resident_adapters_come_first() -> None:
    held = HeldAdapters((lora("a"), lora("b"), lora("c"), lora("d")), ("d", "c"))

    told = held.first(3)

    assert [adapter.name for adapter in told.known] == ["d", "c", "a"]
    assert told.resident == ("d", "c")
    assert held.first(1) == HeldAdapters((lora("d"),), ("d",))


def test_name_is_listed_once() -> None:
    held = HeldAdapters((lora("a"), lora("a"), lora("b")), ("b", "b", "gone"))

    assert held.first(9) == HeldAdapters((lora("b"), lora("a")), ("b", "gone"))
