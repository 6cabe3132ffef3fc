"""Signed registrations: `pentimento models` signs them, the controller stores them, and a worker verifies them before
it fetches a file."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pentimento.cli import cli
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import digest_checkpoint
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.models import ModelVariant
from pentimento.files.json_values import from_json, to_json
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from services.unet_worker.models.stored_models import with_stored
from services.unet_worker.settings import SkipMissing, UnetWorkerSettings
from tests.integration.controller.test_stored_models import Running, checkpoint, running
from tests.unit.files.test_signed_entries import Keys

__all__ = ["checkpoint"]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def worker_of(suite: Running, keys: Path | None, model: str | Path = "mine", **changed: Any) -> UnetWorkerSettings:
    return UnetWorkerSettings(
        RpcServerSettings(),
        RpcChannelSettings(),
        Path(model),
        component_cache_dir=suite.folder / "components",
        objects_url=f"file://{suite.folder / 'objects'}",
        controller_address=suite.address,
        registry_public_keys=keys,
        **changed,
    )


async def rejection(settings: UnetWorkerSettings) -> FailedPrecondition:
    with pytest.raises(FailedPrecondition) as caught:
        await with_stored(settings)
    assert settings.component_cache_dir is not None
    assert not list(settings.component_cache_dir.glob("blobs/*")), "a file was fetched"
    return caught.value


async def sign(entry: str | Path, key: Path, suite: Running) -> str:
    words = ["models", "sign", str(entry), "--signing-key", str(key), "--controller-address", suite.address]
    ended = await asyncio.to_thread(CliRunner().invoke, cli, words)
    assert ended.exit_code == 0, ended.output
    return ended.output


async def add(suite: Running, checkpoint: Path, *words: str) -> None:
    added = await suite.command("add", "mine", str(checkpoint), "--licence", "MIT", *words)
    assert added.exit_code == 0, added.output


async def test_worker_fetches_a_signed_model_and_no_unsigned_one(folder: Path, checkpoint: Path, keys: Keys) -> None:
    public = keys.public("first")
    async with running(folder) as suite:
        await add(suite, checkpoint)
        unsigned = await rejection(worker_of(suite, public))
        said = await sign("mine", keys.private("first"), suite)
        settings, _ = await with_stored(worker_of(suite, public))

    assert unsigned.reason == "UNSIGNED_ENTRY"
    assert unsigned.metadata == {"component": "mine", "key_id": ""}
    assert said == f"signed by {keys.id_of('first')}: mine\n"
    digest = digest_checkpoint(check_checkpoint(checkpoint)).model
    assert (settings.model_name, settings.expected_digest) == ("mine", digest)


async def test_signature_of_add_survives_a_restart_and_is_replaced_by_another_key(
    folder: Path, checkpoint: Path, keys: Keys
) -> None:
    first = str(keys.private("first"))
    async with running(folder) as suite:
        await add(suite, checkpoint, "--signing-key", first)
    async with running(folder) as suite:
        before = await suite.models.model("mine")
        await with_stored(worker_of(suite, keys.public("first")))
        await sign("mine", keys.private("second"), suite)
        again = await suite.models.model("mine")
        await with_stored(worker_of(suite, keys.public("second", "first")))
    async with running(folder) as suite:
        await with_stored(worker_of(suite, keys.public("second")))
        shutil.rmtree(folder / "components")
        old = await rejection(worker_of(suite, keys.public("first")))

    assert before.signature is not None and again.signature is not None
    assert before.signature.key_id == keys.id_of("first")
    assert again == replace(before, signature=again.signature)
    assert (old.reason, old.metadata["key_id"]) == ("UNKNOWN_SIGNING_KEY", keys.id_of("second"))


def other_blocks(model: ModelVariant) -> ModelVariant:
    weights = next(file for file in model.files if file.blocks)
    changed = replace(weights, blocks=("f" * 64, *weights.blocks[1:]))
    return replace(model, files=tuple(changed if file is weights else file for file in model.files))


TAMPERED: dict[str, Callable[[ModelVariant], ModelVariant]] = {
    "licence": lambda model: replace(model, licence="none"),
    "digest": lambda model: replace(model, digest="sha256:" + "c" * 64),
    "blocks": other_blocks,
    "source": lambda model: replace(model, source="s3://bucket/elsewhere"),
}


async def test_registration_changed_in_ledger_is_rejected(folder: Path, checkpoint: Path, keys: Keys) -> None:
    async with running(folder) as suite:
        await add(suite, checkpoint, "--signing-key", str(keys.private("first")))
        model, models, found = await suite.models.model("mine"), suite.process.repository._models, {}
        for field, change in TAMPERED.items():
            models["mine"] = change(model)
            found[field] = await rejection(worker_of(suite, keys.public("first")))
        # A controller that answers with another model's registration.
        models["wanted"] = model
        other = await rejection(worker_of(suite, keys.public("first"), "wanted"))

    key_id = keys.id_of("first")
    for field, error in found.items():
        assert (error.reason, error.metadata) == ("BAD_SIGNATURE", {"component": "mine", "key_id": key_id}), field
    assert (other.reason, other.metadata) == ("BAD_SIGNATURE", {"component": "wanted", "key_id": key_id})


async def test_signature_is_the_only_field_that_a_second_registration_changes(
    folder: Path, checkpoint: Path, keys: Keys
) -> None:
    async with running(folder) as suite:
        await add(suite, checkpoint, "--signing-key", str(keys.private("first")))
        model = replace(await suite.models.model("mine"), source="objects:")
        with pytest.raises(FailedPrecondition, match="is registered with other licence"):
            await suite.models.register_model(replace(model, licence="other"))
        # It cannot be taken off again without a removal.
        with pytest.raises(FailedPrecondition, match="is registered with"):
            await suite.models.register_model(replace(model, signature=None))
        kept = await suite.models.model("mine")

    assert kept.signature == model.signature


async def test_other_model_without_a_signature_ends_the_start_though_it_may_be_missing(
    folder: Path, checkpoint: Path, keys: Keys
) -> None:
    async with running(folder) as suite:
        await add(suite, checkpoint)
        missing = {"skip_missing": SkipMissing.ALL, "other_models": (Path("absent"),)}
        found = await rejection(worker_of(suite, keys.public("first"), **missing))

    assert found.reason == "UNSIGNED_ENTRY"


def local(checkpoint: Path, folder: Path, **more: Any) -> Path:
    """Write a model to the worker's disk, with its entry next to it."""
    model = shutil.copytree(checkpoint, folder / "models" / "tiny")
    digest = digest_checkpoint(check_checkpoint(model)).model
    entry = {"name": "tiny", "path": "tiny", "kind": "pipeline", "digest": digest, **more}
    (folder / "models" / "registry.json").write_text(json.dumps({"version": 1, "models": [entry]}))
    return model


async def test_model_on_disk_needs_a_signed_entry_next_to_it(folder: Path, checkpoint: Path, keys: Keys) -> None:
    model, public = local(checkpoint, folder), keys.public("first")
    registry = folder / "models" / "registry.json"
    digest = digest_checkpoint(check_checkpoint(model)).model
    async with running(folder) as suite:
        wanted = worker_of(suite, public, model, other_models=(model,))
        unsigned = await rejection(wanted)
        said = await sign(registry, keys.private("first"), suite)
        settings, _ = await with_stored(wanted)
        with pytest.raises(FailedPrecondition, match="its signed entry has the digest") as other:
            await with_stored(replace(wanted, expected_digest="sha256:" + "c" * 64))
        registry.write_text(registry.read_text().replace('"pipeline"', '"lora"'))
        changed = await rejection(wanted)
        registry.unlink()
        absent = await rejection(wanted)

    assert said == f"signed by {keys.id_of('first')}: tiny\n"
    assert (settings.expected_digest, settings.other_models) == (digest, (Path(f"{model}@{digest}"),))
    assert other.value.reason == "MODEL_DIGEST_MISMATCH"
    assert [one.reason for one in (unsigned, changed, absent)] == ["UNSIGNED_ENTRY", "BAD_SIGNATURE", "UNSIGNED_ENTRY"]


async def test_no_registration_is_verified_without_keys(folder: Path, checkpoint: Path) -> None:
    model = local(checkpoint, folder, signature={"key_id": "0", "signed_at_ms": 1, "value": "AAAA"})
    async with running(folder) as suite:
        await add(suite, checkpoint)
        fetched, _ = await with_stored(worker_of(suite, None))
        unchanged, _ = await with_stored(worker_of(suite, None, model))

    assert fetched.model_name == "mine"
    assert (unchanged.model, unchanged.expected_digest) == (model, "")


async def test_earlier_registration_is_rejected_once_a_later_one_was_seen(
    folder: Path, checkpoint: Path, keys: Keys
) -> None:
    """A ledger that is put back to a version with a flaw, which was signed too."""
    private = keys.private("first")
    async with running(folder) as suite:
        await add(suite, checkpoint, "--signing-key", str(private))
        flawed = await suite.models.model("mine")
        assert flawed.signature is not None
        signed = from_json(ModelVariant, keys.signed("first", to_json(replace(flawed, source="objects:")), 1000))
        later = keys.signed("first", to_json(replace(signed, digest="sha256:" + "c" * 64)), 2000)
        suite.process.repository._models["mine"] = from_json(ModelVariant, later)
        settings = worker_of(suite, keys.public("first"))
        assert settings.trusted is not None
        settings.trusted.check("mine", later)
        suite.process.repository._models["mine"] = signed
        found = await rejection(settings)

    assert (found.reason, found.metadata["component"]) == ("STALE_ENTRY", "mine")
