"""Limits of reports, models and cascades, by field."""

import math
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.diffusion.checkpoint import digest_files
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.components import StoredBytes, Tier, TierSpeed
from pentimento.domain.demand import NOTHING_KEPT, AdapterDemand, KeptQuality, PoolDemand, StartShare
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.fleet import MeasuredDeferral, ModelCost, Replica, ReplicaKind, ReplicaReport
from pentimento.domain.models import DeviceCost, ModelFile, ModelVariant, ReuseProfile, digest_of
from pentimento.domain.thinned_steps import ThinnableSteps
from pentimento.domain.weights import ComponentWeights, ModelChange, ShortModel, SwitchWay
from services.controller.checks import (
    MAX_COUNT,
    MAX_REQUESTS,
    MAX_STEPS,
    check_cascade,
    check_replica,
    check_report,
)
from services.controller.model_checks import check_fits_disk, check_variant
from tests.unit.controller.registered import DISCRIMINATOR_DIGEST, FILES, cascade, variant

REPLICA = Replica("worker-1", ReplicaKind.UNET_WORKER, "unix:/run/w1.sock", 1)
REPORT = ReplicaReport("worker-1", 1)


@pytest.mark.parametrize("address", ["unix:/run/w1.sock", "127.0.0.1:50051", "[::1]:50051", "worker-1.fleet:65535"])
def test_channel_addresses_are_accepted(address):
    check_replica(replace(REPLICA, address=address))


NEON = Adapter("neon", AdapterKind.LORA, "sha256:" + "a" * 64, "sd", "sha256:" + "b" * 64)
MOSAIC = replace(NEON, name="mosaic")
COST = ModelCost("good", ((1, 0.5),), 10, 1.0)


def test_models_may_have_the_names_of_any_directories():
    named = {"stored": (StoredBytes("FLUX.2-klein-4B", Tier.DISK, 1),), "short_models": (ShortModel("Z-Image", 2, 1),)}
    check_replica(replace(REPLICA, **named, change=ModelChange("Z-Image-Turbo", SwitchWay.STAGED, 1, 0, 0)))


def test_adapters_may_be_of_one_model_or_of_a_family():
    check_replica(replace(REPLICA, adapters=(NEON, replace(MOSAIC, base_digest=""))))
    check_replica(replace(REPLICA, adapters=(NEON, replace(NEON, kind=AdapterKind.CONTROLNET))))


def adapters(**changed: Any) -> dict[str, Any]:
    return {"adapters": (NEON, replace(MOSAIC, **changed))}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *(({"instance_id": name}, "instance_id: must be 1 to 128 letters") for name in ("", "a b", "w\0", "x" * 129)),
        *(({"generation": number}, "generation: must be between 1") for number in (0, 2**63)),
        *(
            ({"address": address}, "replica.address: must be unix:/path or host:port")
            for address in ("", "unix:", "nowhere", "host:0", "host:65536", "ho st:1", "x" * 300 + ":1")
        ),
        ({"available_models": ("",)}, "replica.available_models: must not hold an empty name"),
        ({"available_models": ("m",) * 1025}, "replica.available_models: must be at most 1024 names, got 1025"),
        ({"resident_models": ("x" * 257,)}, "replica.resident_models: must be at most 256 printable"),
        ({"resident_models": ("a\nb",)}, "replica.resident_models: must be at most 256 printable"),
        ({"device": "x" * 257}, "replica.device"),
        ({"build_version": "a\0"}, "replica.build_version"),
        ({"device_memory_bytes": -1}, "replica.device_memory_bytes: must be between 0"),
        ({"adapter_memory_bytes": -1}, "replica.adapter_memory_bytes"),
        ({"weights": (ComponentWeights("unet", "int8", -1),)}, "replica.weights[0].size_bytes"),
        ({"short_models": (ShortModel("flux", 1, 2**63),)}, "replica.short_models[0].budget_bytes"),
        ({"change": ModelChange("flux", SwitchWay.STAGED, 2**63, 0, 0)}, "replica.change.weight_bytes"),
        ({"change": ModelChange("", SwitchWay.STAGED, 1, 1, 1)}, "replica.change.model"),
        (adapters(name="../neon"), "replica.adapters[1].name"),
        (adapters(name="neon"), "replica.adapters: must name each adapter once"),
        (adapters(digest=""), "replica.adapters[1].digest"),
        (adapters(digest="sha256:A"), "replica.adapters[1].digest"),
        (adapters(base_digest="heavy"), "replica.adapters[1].base_digest"),
        (adapters(family="x" * 257), "replica.adapters[1].family"),
        (adapters(licence="a\0"), "replica.adapters[1].licence"),
        (adapters(latest_start_fraction=math.nan), "replica.adapters[1].latest_start_fraction"),
        ({"adapters": (NEON,) * 1025}, "replica.adapters: must be at most 1024, got 1025"),
        ({"costs": (COST, ModelCost("x" * 257, ((1, 1.0),)))}, "replica.costs[1].model"),
        (
            {"costs": (ModelCost("m", ((0, 1.0),)),)},
            "replica.costs[0].batches.batch_size: must be between 1",
        ),
        (
            {"costs": (ModelCost("m", ((1, 0.0),)),)},
            "replica.costs[0].batches.run_s: must be between 1e-06 and",
        ),
        ({"costs": (ModelCost("m", ((1, math.nan),)),)}, "replica.costs[0].batches.run_s"),
        (
            {"costs": (ModelCost("m", (), load_s=math.inf),)},
            "replica.costs[0].load_s: must be between 0 and 1e+06",
        ),
        ({"costs": (ModelCost("m", (), memory_bytes=-1),)}, "replica.costs[0].memory_bytes"),
        ({"stored": (StoredBytes("", Tier.DISK, 1),)}, "replica.stored[0].component"),
        ({"stored": (StoredBytes("m", Tier.DISK, 2**63),)}, "replica.stored[0].size_bytes"),
        ({"stored": (StoredBytes("m", Tier.DISK, 1),) * 2049}, "replica.stored: must be at most 2048, got 2049"),
    ],
)
def test_invalid_registration_is_refused_by_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(message)}"):
        check_replica(replace(REPLICA, **changed))


def demand(**changed: Any) -> dict[str, Any]:
    return {"demand": (PoolDemand("heavy", **changed),)}


def thinnable(*sums: float) -> dict[str, Any]:
    return demand(thinnable=ThinnableSteps(*sums))  # type: ignore[arg-type]


def with_others(*names: str) -> dict[str, Any]:
    return demand(adapters=(AdapterDemand(AdapterKind.LORA, "ink", 1, names),))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *(({"busy_share": share}, "busy_share: must be between 0 and 1") for share in (math.nan, -0.001, 1.001)),
        *(
            ({field: count}, f"{field}: must be between 0")
            for field in ("queue_length", "running_count", "completed_count", "failed_count")
            for count in (-1, MAX_COUNT + 1)
        ),
        (demand(arrived_count=-1), "demand[0].arrived_count"),
        (demand(arrived_count=MAX_REQUESTS + 1), "demand[0].arrived_count"),
        (
            demand(scored_count=2, deferred_count=3),
            "demand[0].deferred_count: must be at most scored_count, 2, got 3",
        ),
        (demand(starts=(StartShare(5, -1),)), "demand[0].starts[0].request_count"),
        (demand(starts=(StartShare(MAX_STEPS + 1, 1),)), "demand[0].starts[0].start_step"),
        (demand(starts=(StartShare(5, 1, step_count=5),)), "demand[0].starts[0].start_step: must be below step_count"),
        (demand(starts=(StartShare(5, 1),) * 1025), "demand[0].starts: must be at most 1024"),
        (demand(confidences=(1, 2)), "demand[0].confidences: must be 20 counts or none, got 2"),
        (demand(confidences=(-1,) * 20), "demand[0].confidences[0]"),
        ({"demand": (PoolDemand("x" * 257),)}, "demand[0].model"),
        ({"demand": (PoolDemand("m"),) * 1025}, "demand: must be at most 1024 pools"),
        (thinnable(-1), "demand[0].thinnable.request_count: must be between 0"),
        (thinnable(MAX_REQUESTS + 1), "demand[0].thinnable.request_count: must be between 0"),
        (thinnable(1, 2.0), "demand[0].thinnable.spare_shares: must be between 0 and request_count, 1, got 2.0"),
        (thinnable(1, math.nan), "demand[0].thinnable.spare_shares: must be between 0 and request_count, 1, got nan"),
        (thinnable(1, 0.5, -0.5), "demand[0].thinnable.lost_shares: must be between 0 and request_count, 1, got -0.5"),
        (demand(compared=(NOTHING_KEPT,)), "demand[0].compared: must be 20 sums or none, got 1"),
        (demand(compared=(NOTHING_KEPT,) * 19 + (KeptQuality(1, 2.5, 1.0),)), "demand[0].compared[19].kept: must be"),
        (demand(hits=KeptQuality(1, math.nan, 0.0)), "demand[0].hits.kept: must be between 0 and 2 an image"),
        (demand(hits=KeptQuality(1, 1.0, -1.0)), "demand[0].hits.squares: must be"),
        (demand(hits=KeptQuality(-1)), "demand[0].hits.count"),
        (with_others("a", ""), "demand[0].adapters.others[1]"),
        (with_others(*["a"] * 65), "demand[0].adapters.others: must be at most 64, got 65"),
        ({"load_speeds": (TierSpeed(Tier.DISK, -1.0),)}, "load_speeds[0].seconds_per_gb"),
        ({"lora_speeds": (TierSpeed(Tier.DISK, math.nan),)}, "lora_speeds[0].seconds_per_gb"),
        ({"lora_speeds": (TierSpeed(Tier.DISK, 1.0),) * 5}, "lora_speeds: must be at most 4 tiers, got 5"),
    ],
)
def test_impossible_report_is_refused_by_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(message)}"):
        check_report(replace(REPORT, **changed))


def test_start_without_its_steps_and_all_steps_left_out_pass() -> None:
    starts = (StartShare(4, 1, step_count=5), StartShare(5, 1))

    check_report(replace(REPORT, **demand(starts=starts, thinnable=ThinnableSteps(2, 2.0, 2.0))))


@given(st.text(max_size=300), st.text(max_size=300), st.integers())
def test_check_of_any_text_passes_or_refuses(name, address, generation):
    try:
        check_replica(Replica(name, ReplicaKind.EMBEDDER, address, generation, available_models=(name,)))
    except InvalidArgument as refusal:
        assert refusal.violations


GOOD = variant("light", ("gpu", 0.5))
WEIGHTS = FILES[1]


def test_model_and_cascades_of_two_and_three_pass() -> None:
    check_variant(GOOD)
    check_cascade(cascade("light", "heavy"))
    check_cascade(cascade("light", "middle", "heavy"))


def test_cascade_and_its_discriminator_may_have_capital_letters() -> None:
    pair = cascade("SD-Turbo", "FLUX.2-klein-4B")
    (first,) = pair.handovers

    check_variant(replace(GOOD, name="SD-Turbo", costs=()))
    check_cascade(pair)
    measured = MeasuredDeferral(first.discriminator, DISCRIMINATOR_DIGEST, first.thresholds, first.shares)
    check_replica(replace(REPLICA, kind=ReplicaKind.DISCRIMINATOR, deferrals=(measured,)))


def test_digest_of_files_equals_workers_digest(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "w.safetensors").write_bytes(b"weights")
    (tmp_path / "model_index.json").write_text("{}")
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    files = tuple(
        ModelFile(str(path.relative_to(tmp_path)), sha256(path.read_bytes()).hexdigest(), 1) for path in paths
    )

    assert digest_of(files) == digest_files(tmp_path, paths)


def weights(**changed: Any) -> dict[str, Any]:
    return {"files": (replace(WEIGHTS, **changed),)}


OUTSIDE = (
    *("/etc/passwd.json", "../w.safetensors", "a/../w.safetensors", "a//w.safetensors", "./w.safetensors"),
    *("a\\w.json", "w\x00.safetensors", "", ".", "a/" * 300 + "w.json", "w.json\n"),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"name": name}, "model.name: must be a model's name") for name in ("../light", "light-", "")),
        ({"digest": "sha256:1"}, "model.digest: must be sha256:<64 hex digits>"),
        ({"digest": "sha256:" + "0" * 64}, "model.digest: must be that of the files"),
        ({"family": ""}, "model.family: must be 1 to 256 printable characters, got none"),
        ({"licence": "x" * 257}, "model.licence: must be at most 256 printable"),
        ({"licence": "\x00"}, "model.licence: must be at most 256 printable"),
        ({"files": ()}, "model.files: must be 1 to 4096, got 0"),
        ({"files": FILES[:1] * 4097}, "model.files: must be 1 to 4096, got 4097"),
        ({"files": FILES * 2}, "model.files: must name each path once"),
        ({"files": FILES[:1]}, "model.files: must have weights: a .safetensors file at least"),
        *((weights(path=path), "model.files[0].path: must") for path in OUTSIDE),
        *(
            (weights(path=f"unet/w{suffix}"), "model.files[0].path: must end in .safetensors, ")
            for suffix in (".bin", ".pt", ".ckpt", ".pkl", ".safetensors.bin", ".py", "")
        ),
        (weights(sha256="B" * 64), "model.files[0].sha256: must be 64 hex"),
        (weights(size_bytes=-1), "model.files[0].size_bytes"),
        ({"costs": (DeviceCost("", ModelCost("other", ((1, 1.0),))),)}, "model.costs[0].cost.model: must be light"),
        ({"costs": (DeviceCost("", ModelCost("light", ())),)}, "model.costs[0].cost.batches: must have at least one"),
        ({"costs": (DeviceCost("", ModelCost("light", ((1, math.nan),))),)}, "model.costs[0].cost.batches.run_s"),
        ({"costs": GOOD.costs * 65}, "model.costs: must be at most 64 devices, got 65"),
    ],
)
def test_unservable_model_is_refused_by_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(message)}"):
        check_variant(replace(GOOD, **change))


TWO = cascade("light", "heavy")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (("light",), "cascade.models: must be 2 to 8 models, got 1"),
        (tuple(f"m{number}" for number in range(9)), "cascade.models: must be 2 to 8 models, got 9"),
        (("light", "light"), "cascade.models: must name each model once"),
        (("light", "a>b"), r"cascade.models\[1\]: must be a model's name"),
        (("light", "middle", "heavy"), "cascade.handovers: must be 2, one for each model but the last, got 1"),
    ],
)
def test_cascade_has_models_and_one_handover_less(models: tuple[str, ...], message: str) -> None:
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
def test_unusable_handover_is_refused_by_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"cascade.handovers\[0\].{message}"):
        check_cascade(replace(TWO, handovers=(replace(TWO.handovers[0], **change),)))


@given(name=st.text(max_size=200), path=st.text(max_size=60))
def test_variant_check_of_any_text_passes_or_refuses(name: str, path: str) -> None:
    try:
        check_variant(replace(GOOD, name=name, files=(replace(WEIGHTS, path=path),)))
    except InvalidArgument as refused:
        assert refused.violations[0].field.startswith("model.")


def stored_variant(**changed: object) -> ModelVariant:
    files = (FILES[0], replace(FILES[1], blocks=("c" * 64,)))
    model = replace(variant("mine"), files=files, source="s3://bucket/mine", default_steps=20)
    return replace(model, **changed)  # type: ignore[arg-type]


def test_variant_with_a_source_passes() -> None:
    check_variant(stored_variant())
    check_variant(stored_variant(source="objects:"))


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("model.source", {"source": "https://example.org/mine"}),
        ("model.source", {"source": "s3://b/\n"}),
        ("model.source", {"source": "s3://" + "b" * 600}),
        ("model.default_steps", {"default_steps": 0}),
        ("model.default_guidance_scale", {"default_guidance_scale": -1.0}),
        ("model.default_guidance_scale", {"default_guidance_scale": math.nan}),
        (r"model.files\[1\].blocks", {"files": FILES}),
        (r"model.files\[1\].blocks", {"files": (FILES[0], replace(FILES[1], blocks=("c" * 64,) * 2))}),
        (r"model.files\[1\].blocks", {"files": (FILES[0], replace(FILES[1], blocks=("C" * 64,)))}),
    ],
)
def test_source_that_workers_cannot_read_is_rejected_by_field(field: str, changed: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=field):
        check_variant(stored_variant(**changed))


def test_files_beyond_the_local_disk_are_rejected_by_tier_and_equal_files_count_once() -> None:
    twice = (*FILES, replace(FILES[1], path="vae/diffusion_pytorch_model.safetensors"))
    check_fits_disk(twice, 1010)

    with pytest.raises(FailedPrecondition, match="local disk tier of 1009 bytes") as raised:
        check_fits_disk(twice, 1009)

    assert raised.value.reason == "COMPONENT_TOO_LARGE"
