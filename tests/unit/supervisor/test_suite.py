"""Test the processes of a suite, and their arguments."""

from pathlib import Path
from typing import Any

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.supervisor.models import ModelDirectory
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite import plan_suite
from pentimento.supervisor.suite_settings import ServedCascade, Suite, SuiteSettings


def planned(directory: Path, names: str = "a", **given: Any) -> Suite:
    """Plan a suite of models, each in the directory of its name."""
    models = tuple(ModelDirectory(name, directory / name) for name in names.split())
    return plan_suite(SuiteSettings(models, directory, **given), StateDirectory(directory / "state"))


def flags_of(suite: Suite, name: str) -> dict[str, str]:
    arguments = next(process.arguments for process in suite.processes if process.name == name)
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def test_profiles_reach_workers_frontdoor_and_gateway(tmp_path: Path) -> None:
    suite = planned(tmp_path, profiles=(tmp_path / "a.json", tmp_path / "b.json"))

    for name in ("a-0", "frontdoor", "gateway"):
        assert flags_of(suite, name)["--profiles"] == f"{tmp_path}/a.json,{tmp_path}/b.json"


def test_flags_reach_every_process_of_their_service(tmp_path: Path) -> None:
    of_worker = {"text-encoders": "host", "tile-px": 0, "weights": None}
    flags = {"unet_worker": of_worker, "controlnet_svc": {"max-batch": 4}}

    chosen = planned(tmp_path, copies=2, controlnets=Path("/registry.json"), flags=flags)

    assert "--text-encoders" not in flags_of(planned(tmp_path), "a-0")
    for name in ("a-0", "a-1"):
        found = flags_of(chosen, name)
        assert (found["--text-encoders"], found["--tile-px"]) == ("host", "0")
        assert not {"--weights", "--max-batch"} & found.keys()
    assert flags_of(chosen, "controlnet-0")["--max-batch"] == "4"


def test_frontdoor_gets_key_of_receipts_only_if_given(tmp_path: Path) -> None:
    key = tmp_path / "key"

    assert "--receipt-key-file" not in flags_of(planned(tmp_path), "frontdoor")
    assert flags_of(planned(tmp_path, receipt_key_file=key), "frontdoor")["--receipt-key-file"] == str(key)


def test_under_a_policy_every_worker_may_hold_every_model_and_gateway_follows_plan(tmp_path: Path) -> None:
    resident, chosen = (planned(tmp_path, "a b", policy=policy) for policy in ("", "modm"))

    assert "--other-models" not in flags_of(resident, "a-0")
    assert flags_of(chosen, "a-0")["--other-models"] == f"{tmp_path}/b"
    own, followed = (next(one for one in suite.processes if one.name == "gateway") for suite in (resident, chosen))
    assert ("--follow-plan" in own.arguments, "--follow-plan" in followed.arguments) == (False, True)


def test_pinned_model_digest_applies_to_every_worker(tmp_path: Path) -> None:
    digest = f"sha256:{'1' * 64}"
    models = (ModelDirectory("a", tmp_path / "a"), ModelDirectory("b", tmp_path / "b", digest))

    suite = plan_suite(SuiteSettings(models, tmp_path, policy="modm"), StateDirectory(tmp_path / "state"))

    assert flags_of(suite, "a-0")["--other-models"] == f"{tmp_path}/b@{digest}"
    assert "--expected-digest" not in flags_of(suite, "a-0")
    assert flags_of(suite, "b-0")["--expected-digest"] == digest


def test_models_of_s3_are_named_with_their_address(tmp_path: Path) -> None:
    digest = f"sha256:{'1' * 64}"
    sources = {name: f"{name}=s3://bucket/{name}@{digest}" for name in "ab"}
    models = tuple(ModelDirectory(name, Path(name), digest, source) for name, source in sources.items())

    suite = plan_suite(SuiteSettings(models, tmp_path, policy="modm"), StateDirectory(tmp_path / "state"))

    flags = flags_of(suite, "a-0")
    assert (flags["--model"], flags["--other-models"]) == (sources["a"], sources["b"])


def test_policy_plans_the_cascade_that_is_served(tmp_path: Path) -> None:
    cascade = ServedCascade(("l", "h"), (tmp_path / "d",))

    resident, chosen = (planned(tmp_path, "h l", policy=policy, cascade=cascade) for policy in ("", "joint"))

    flags = flags_of(chosen, "controller")
    assert (flags["--light"], flags["--heavy"]) == ("l", "h")
    assert "--light" not in flags_of(resident, "controller")


@pytest.mark.parametrize(
    ("names", "policy", "variables", "flags"),
    [
        ("h s", "modm", {}, {"--heavy": "h", "--small": "s"}),
        ("h s t", "modm", {}, {"--heavy": "h", "--small": "s,t"}),
        ("h", "nirvana-only", {}, {"--heavy": "h"}),
        ("h s", "modm", {"HEAVY": "s"}, {"--heavy": "s", "--small": "h"}),
        ("h s t", "modm", {"SMALL": "t"}, {"--heavy": "h"}),
        ("h s", "diffserve", {"LIGHT": "s"}, {"--heavy": "h"}),
        ("h s", "", {}, {}),
    ],
)
def test_controller_plans_models_of_suite(
    names: str,
    policy: str,
    variables: dict[str, str],
    flags: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"PENTIMENTO_CONTROLLER_{name}", value)

    found = flags_of(planned(tmp_path, names, policy=policy), "controller")

    assert {name: found[name] for name in ("--heavy", "--small", "--light") if name in found} == flags


def test_controller_plans_with_given_small_models(tmp_path: Path) -> None:
    alone, cascaded = (
        flags_of(planned(tmp_path, "h a b", policy="modm", small=("a", "b"), cascade=one), "controller")
        for one in (None, ServedCascade(("a", "h"), (tmp_path / "d",)))
    )

    assert (alone["--heavy"], alone["--small"], "--light" in alone) == ("h", "a,b", False)
    assert (cascaded["--heavy"], cascaded["--light"], cascaded["--small"]) == ("h", "a", "a,b")


def test_longer_cascade_has_a_discriminator_for_each_hand_over_and_is_planned_by_its_slo(tmp_path: Path) -> None:
    cascade = ServedCascade(("a", "b", "c"), (tmp_path / "d1", tmp_path / "d2"))

    plain, timed = (planned(tmp_path, "a b c", cascade=cascade, slo_s=slo_s) for slo_s in (None, 9.0))

    assert flags_of(plain, "discriminator")["--cascades"] == f"a>b={tmp_path / 'd1'},b>c={tmp_path / 'd2'}"
    assert flags_of(plain, "frontdoor")["--cascade"] == "a,b,c"
    assert "--cascade" not in flags_of(plain, "controller")
    assert "--other-models" not in flags_of(plain, "a-0")
    flags = flags_of(timed, "controller")
    assert (flags["--cascade"], flags["--slo-s"]) == ("a>b>c", "9.0")
    assert flags_of(timed, "a-0")["--other-models"] == f"{tmp_path}/b,{tmp_path}/c"


def test_suite_long_model_name_has_short_socket(tmp_path: Path) -> None:
    names = [f"{'x' * 60}-{number}" for number in range(2)]

    suite = planned(tmp_path, " ".join(names))

    sockets = [flags_of(suite, f"{name}-0")["--listen"] for name in names]
    assert len(set(sockets)) == 2
    assert {len(address.rpartition("/")[2]) for address in sockets} == {24}


@pytest.mark.parametrize("part", ["a,b", "model "])
def test_suite_path_with_list_separator_is_rejected(part: str, tmp_path: Path) -> None:
    models = (ModelDirectory("a", tmp_path / "a"), ModelDirectory("b", tmp_path / part))

    plan_suite(SuiteSettings(models, tmp_path), StateDirectory(tmp_path / "state"))
    with pytest.raises(InvalidArgument, match="model: must be a path without a comma and without spaces at its ends"):
        plan_suite(SuiteSettings(models, tmp_path, policy="modm"), StateDirectory(tmp_path / "state"))


def test_number_of_embedders_controlnet_services_and_workers_may_change(tmp_path: Path) -> None:
    suite = planned(tmp_path, "tiny", copies=2, controlnets=Path("/registry.json"))

    groups = {group.name: [group.spec(number).name for number in range(3)] for group in suite.groups}
    assert groups == {
        "embedder": ["embedder", "embedder-1", "embedder-2"],
        "controlnet_svc": ["controlnet-0", "controlnet-1", "controlnet-2"],
        "unet_worker": ["tiny-0", "tiny-1", "tiny-2"],
    }
    assert {spec.name for group in suite.groups for spec in group.specs} == {
        *("embedder", "controlnet-0", "tiny-0", "tiny-1")
    }


def test_image_encoder_has_own_embedder(tmp_path: Path) -> None:
    suite, alone = planned(tmp_path, image_encoder=Path("/clip")), planned(tmp_path)

    assert flags_of(suite, "embedder")["--encoder"] == str(tmp_path)
    assert "--space" not in flags_of(suite, "embedder")
    images = flags_of(suite, "image-embedder")
    assert (images["--encoder"], images["--space"]) == ("/clip", "image")
    told = flags_of(suite, "frontdoor")
    own = flags_of(suite, "embedder")["--listen"]
    assert told["--embedder-address"] == f"{own},{images['--listen']}"
    assert flags_of(alone, "frontdoor")["--embedder-address"] == own
    group = next(group for group in suite.groups if group.name == "image_embedder")
    assert [group.spec(number).name for number in range(2)] == ["image-embedder", "image-embedder-1"]


def test_many_models_share_workers_that_hold_any(tmp_path: Path) -> None:
    suite = planned(tmp_path, "a b c", copies=2, policy="many-models")

    (workers,) = (group.specs for group in suite.groups if group.name == "unet_worker")
    assert [spec.name for spec in workers] == ["a-0", "b-1"]
    assert flags_of(suite, "b-1")["--other-models"] == f"{tmp_path}/a,{tmp_path}/c"


@pytest.mark.parametrize("threshold", [0.25, None])
def test_served_cascade_has_discriminator_known_to_frontdoor(tmp_path: Path, threshold: float | None) -> None:
    suite = planned(tmp_path, "heavy light", cascade=ServedCascade(("light", "heavy"), (tmp_path / "d",), threshold))

    assert flags_of(suite, "discriminator")["--cascades"] == f"light>heavy={tmp_path / 'd'}"
    flags = flags_of(suite, "frontdoor")
    assert flags["--cascade"] == "light,heavy"
    assert flags.get("--confidence-threshold") == (None if threshold is None else str(threshold))
    assert flags_of(planned(tmp_path, "heavy light"), "frontdoor")["--cascade"] == "heavy"


@pytest.mark.parametrize(("http", "delay_s"), [("127.0.0.1:50480", "0"), ("0.0.0.0:50480", None)])
def test_edge_of_this_machine_alone_stops_without_delay(http: str, delay_s: str | None, tmp_path: Path) -> None:
    """No load balancer is in front of it; with one, the setting delays the stop."""
    assert flags_of(planned(tmp_path, http=http), "edge").get("--drain-delay-s") == delay_s


def test_cells_have_own_stores_and_know_each_other(tmp_path: Path) -> None:
    given: dict[str, Any] = {"cells": (2, 3), "http": "127.0.0.1:1"}
    state = StateDirectory(tmp_path / "state")

    suite = planned(tmp_path, public="127.0.0.1:2", admin="127.0.0.1:3", signing_key_file=tmp_path / "key", **given)

    names = ("frontdoor", "frontdoor-1", "frontdoor-2")
    cells = [flags_of(suite, name) for name in names]
    listed = ",".join(f"{name}=unix:{state.sockets}/{name}.sock" for name in names)
    assert [one["--frontdoor-id"] for one in cells] == list(names)
    assert {one["--cells"] for one in (*cells, flags_of(suite, "edge"))} == {listed}
    assert {one["--cell-lists"] for one in (*cells, flags_of(suite, "edge"))} == {
        "frontdoor+frontdoor-1,frontdoor+frontdoor-1+frontdoor-2"
    }
    stores = [(one["--ledger-url"], one["--objects-url"]) for one in cells]
    assert len({ledger for ledger, _ in stores}) == len({objects for _, objects in stores}) == 3
    assert stores[0] == (f"sqlite:///{state.path}/frontdoor.sqlite", f"file://{state.path}/objects")
    assert {one["--tenants-url"] for one in cells} == {stores[0][0]}
    assert flags_of(suite, "edge")["--files-url"] == ",".join(objects for _, objects in stores)
    assert [one["--listen"].count("127.0.0.1:2") for one in cells] == [1, 0, 0]
    assert [one["--admin-listen"] for one in cells] == [
        *("127.0.0.1:3", f"unix:{state.sockets}/frontdoor-1-admin.sock", f"unix:{state.sockets}/frontdoor-2-admin.sock")
    ]
    without = [flags_of(planned(tmp_path, **given), name) for name in names]
    assert {one.get("--admin-listen", "") for one in without} == {""}


def test_suite_of_one_frontdoor_has_no_cells(tmp_path: Path) -> None:
    flags = flags_of(planned(tmp_path), "frontdoor")

    assert not {"--cells", "--cell-lists", "--tenants-url", "--frontdoor-id"} & flags.keys()
