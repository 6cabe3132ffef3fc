"""`pentimento adapters register` writes the registry of a suite, with the digests that workers measure."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from pentimento.cli.adapters import adapters
from pentimento.domain.adapters import AdapterKind
from pentimento.files.adapter_registry import read_adapters
from pentimento.supervisor.models import WEIGHTS

ENTRIES = {entry["name"]: entry for entry in json.loads((WEIGHTS / "registry.json").read_text())["models"]}
NEON, EDGES = "tiny-lora-neon", "tiny-controlnet-edges"


def register(directory: Path, *flags: str) -> str:
    done = CliRunner().invoke(
        adapters, ["register", str(directory), "--licence", "cc0", *flags], catch_exceptions=False
    )
    assert done.exit_code == 0
    return done.output


@pytest.mark.slow
def test_registered_adapters_have_digests_of_workers(tmp_path: Path) -> None:
    shutil.copytree(WEIGHTS / NEON, tmp_path / "My Neon")
    shutil.copytree(WEIGHTS / EDGES, tmp_path / EDGES)
    shutil.copytree(WEIGHTS / NEON, tmp_path / "embeddings")

    first = register(tmp_path / "My Neon", "--family", "stable_diffusion")
    second = register(tmp_path / EDGES)

    found = read_adapters(tmp_path / "registry.json")
    neon, edges = found["my-neon"], found[EDGES]
    assert (neon.adapter.kind, neon.adapter.family, neon.adapter.licence) == (
        AdapterKind.LORA,
        "stable_diffusion",
        "cc0",
    )
    assert (neon.adapter.digest, neon.directory) == (ENTRIES[NEON]["digest"], tmp_path / "My Neon")
    assert (edges.adapter.kind, edges.adapter.family) == (AdapterKind.CONTROLNET, "stable_diffusion")
    assert edges.adapter.digest == ENTRIES[EDGES]["digest"]
    assert f"`pentimento up --adapters {tmp_path}` serves it" in first
    assert f"not in the registry, so not served: {EDGES}" in first
    assert f"`pentimento up --controlnets {tmp_path}/registry.json` serves it" in second
    assert "not served" not in second


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {"kind": "lora", "digest": f"sha256:{'1' * 64}", "family": ""}
    monkeypatch.setattr("pentimento.cli.adapters.describe", lambda directory: found)
    return found


def test_registered_adapter_of_same_name_is_replaced(described: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "neon").mkdir()
    register(tmp_path / "neon", "--family", "stable_diffusion")
    described["digest"] = f"sha256:{'2' * 64}"
    register(tmp_path / "neon", "--family", "stable_diffusion", "--base-digest", f"sha256:{'3' * 64}")

    (entry,) = json.loads((tmp_path / "registry.json").read_text())["models"]
    assert (entry["digest"], entry["base"]) == (f"sha256:{'2' * 64}", {"digest": f"sha256:{'3' * 64}"})


@pytest.mark.parametrize(
    ("kind", "family", "flags", "message"),
    [
        (
            "lora",
            "",
            [],
            "must be one of stable_diffusion, stable_diffusion_xl, stable_diffusion_3, flux, flux_2, z_image, sana, "
            "qwen_image",
        ),
        ("controlnet", "stable_diffusion", ["--family", "stable_diffusion_xl"], "must be stable_diffusion, got"),
        ("depth_model", "", ["--family", "flux"], "family: must be empty for a depth model"),
        ("depth_model", "", ["--base-digest", f"sha256:{'3' * 64}"], "base-digest: must be empty for a depth model"),
        ("lora", "", ["--name", "Neon"], "must be a registry name"),
        ("lora", "", ["--base-digest", "sha256:1"], "must be sha256:<64 hex digits>"),
    ],
)
def test_register_rejects_unsupported_adapter(
    kind: str, family: str, flags: list[str], message: str, described: dict[str, str], tmp_path: Path
) -> None:
    described.update(kind=kind, family=family)
    (tmp_path / "neon").mkdir()

    done = CliRunner().invoke(adapters, ["register", str(tmp_path / "neon"), "--licence", "cc0", *flags])

    assert message in str(done.exception)
    assert not (tmp_path / "registry.json").exists()
