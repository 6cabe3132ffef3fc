"""What a suite of emulated devices is made of."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from pentimento.cli.up import up
from pentimento.devices.emulation import read_fleet
from pentimento.devices.profile import profile_from_json
from pentimento.domain.errors import InvalidArgument
from pentimento.stores.objects import open_objects
from pentimento.supervisor.models import ModelDirectory
from pentimento.supervisor.process_spec import Suite
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite import longest_drain_s, plan_suite, profile_file, write_profiles
from pentimento.supervisor.suite_settings import ServedCascade, SuiteSettings

FLEET = """\
cascade = ["light", "heavy"]
confidence_threshold = 0.25

[[models]]
name = "light"
steps = 1
latency_s = { 1 = 0.1, 2 = 0.2, 4 = 0.3 }

[[models]]
name = "heavy"
steps = 10
latency_s = { 1 = 1.0 }

[[devices]]
name = "slow"
count = 2
models = ["light", "heavy"]
speed = 0.5
max_batch = 2

[[devices]]
name = "fast"
models = ["light"]

[discriminator]
count = 2
"""


@pytest.fixture
def settings(tmp_path: Path) -> SuiteSettings:
    (tmp_path / "fleet.toml").write_text(FLEET)
    return SuiteSettings((), tmp_path, fleet=read_fleet(tmp_path / "fleet.toml"))


@pytest.fixture
def suite(settings: SuiteSettings, tmp_path: Path) -> Suite:
    return plan_suite(settings, StateDirectory(tmp_path / "state"))


def flags_of(suite: Suite, name: str) -> dict[str, str]:
    arguments = next(process.arguments for process in suite.processes if process.name == name)
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def test_every_device_is_a_worker_and_nobody_keeps_a_cache(suite: Suite) -> None:
    names = [process.name for process in suite.processes]

    assert names == ["controller", "slow-0", "slow-1", "fast-0", "discriminator-0", "discriminator-1", "frontdoor"]
    assert flags_of(suite, "slow-1")["--devices"] == "slow"
    assert "--gateway-address" not in flags_of(suite, "frontdoor")


def test_a_fleet_with_a_cache_has_embedder_and_gateway(settings: SuiteSettings, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("cache = true\n" + FLEET)
    cached = SuiteSettings((), tmp_path, fleet=read_fleet(tmp_path / "fleet.toml"))

    suite = plan_suite(cached, StateDirectory(tmp_path / "state"))

    assert [process.name for process in suite.processes][:2] == ["embedder", "gateway"]
    assert "--gateway-address" in flags_of(suite, "frontdoor")


def test_emulated_pictures_never_lie_with_real_ones(suite: Suite, tmp_path: Path) -> None:
    for name in ("frontdoor", "slow-0"):
        assert flags_of(suite, name)["--objects-url"] == f"file://{tmp_path}/state/emulated/objects"
    assert flags_of(suite, "frontdoor")["--ledger-url"] == f"sqlite:///{tmp_path}/state/emulated/frontdoor.sqlite"


@pytest.mark.parametrize("name", ["suite #1", "suite%201", "suite?1", "suité"])
def test_stores_lie_in_the_state_directory_whatever_it_is_called(
    name: str, settings: SuiteSettings, tmp_path: Path
) -> None:
    (tmp_path / "fleet.toml").write_text("cache = true\n" + FLEET)
    cached = replace(settings, fleet=read_fleet(tmp_path / "fleet.toml"))
    stores = tmp_path / name / "emulated"

    suite = plan_suite(cached, StateDirectory(tmp_path / name))

    gateway = next(process.arguments for process in suite.processes if process.name == "gateway")
    objects, index, ledger = (
        gateway[gateway.index(flag) + 1] for flag in ("--objects-url", "--index-url", "--ledger-url")
    )
    open_objects(objects)
    assert (stores / "objects").is_dir()
    assert unquote(urlsplit(index).path) == str(stores / "index")
    assert make_url(ledger).database == str(stores / "gateway.sqlite")


@pytest.mark.parametrize(
    ("environ", "drain_s"),
    [
        ({}, 30.0),
        ({"PENTIMENTO_COMMON_DRAIN_TIMEOUT_S": "120"}, 120.0),
        ({"PENTIMENTO_EMULATED_WORKER_DRAIN_TIMEOUT_S": "90", "PENTIMENTO_FRONTDOOR_DRAIN_TIMEOUT_S": "5"}, 90.0),
        ({"PENTIMENTO_UNET_WORKER_DRAIN_TIMEOUT_S": "90"}, 30.0),
    ],
)
def test_a_suite_may_drain_for_as_long_as_one_of_its_processes(
    environ: dict[str, str], drain_s: float, suite: Suite
) -> None:
    assert longest_drain_s(suite, None, environ) == drain_s


def test_the_frontdoor_hears_of_the_cascade_and_of_what_models_cost(suite: Suite, tmp_path: Path) -> None:
    flags = flags_of(suite, "frontdoor")

    assert (flags["--cascade"], flags["--confidence-threshold"]) == ("light,heavy", "0.25")
    assert [Path(file).name for file in flags["--profiles"].split(",")] == ["light.json", "heavy.json"]


def test_the_controller_hears_of_the_policy_and_finds_the_rest_in_the_fleets_file(
    settings: SuiteSettings, tmp_path: Path
) -> None:
    planned = plan_suite(replace(settings, policy="diffserve", slo_s=5.0), StateDirectory(tmp_path / "state"))

    flags = flags_of(planned, "controller")
    assert (flags["--allocator"], flags["--slo-s"], flags["--fleet"]) == (
        "diffserve",
        "5.0",
        str(tmp_path / "fleet.toml"),
    )


def test_measured_costs_reach_those_who_plan_and_predict_with_them(tmp_path: Path) -> None:
    models = (ModelDirectory("m", tmp_path / "m"),)
    files = (tmp_path / "a.json", tmp_path / "b.json")

    suite = plan_suite(SuiteSettings(models, tmp_path, profiles=files), StateDirectory(tmp_path / "state"))

    for name in ("m-0", "frontdoor"):
        assert flags_of(suite, name)["--profiles"] == f"{tmp_path}/a.json,{tmp_path}/b.json"


def test_a_model_of_one_digest_alone_is_told_to_its_workers(tmp_path: Path) -> None:
    models = (ModelDirectory("a", tmp_path / "a", "sha256:1"), ModelDirectory("b", tmp_path / "b"))

    suite = plan_suite(SuiteSettings(models, tmp_path), StateDirectory(tmp_path / "state"))

    assert flags_of(suite, "a-0")["--expected-model-digest"] == "sha256:1"
    assert "--expected-model-digest" not in flags_of(suite, "b-0")


def test_under_a_policy_every_worker_may_hold_every_model(tmp_path: Path) -> None:
    models = (ModelDirectory("a", tmp_path / "a"), ModelDirectory("b", tmp_path / "b"))
    settings = SuiteSettings(models, tmp_path)

    resident, planned = (
        plan_suite(replace(settings, policy=policy), StateDirectory(tmp_path / "state")) for policy in ("", "modm")
    )

    assert "--other-models" not in flags_of(resident, "a-0")
    assert flags_of(planned, "a-0")["--other-models"] == f"{tmp_path}/b"


def test_a_model_of_one_digest_alone_is_that_wherever_a_plan_places_it(tmp_path: Path) -> None:
    digest = f"sha256:{'1' * 64}"
    models = (ModelDirectory("a", tmp_path / "a"), ModelDirectory("b", tmp_path / "b", digest))

    suite = plan_suite(SuiteSettings(models, tmp_path, policy="modm"), StateDirectory(tmp_path / "state"))

    assert flags_of(suite, "a-0")["--other-models"] == f"{tmp_path}/b@{digest}"
    assert flags_of(suite, "b-0")["--expected-model-digest"] == digest


def test_a_policy_plans_the_cascade_that_is_served(tmp_path: Path) -> None:
    models = (ModelDirectory("h", tmp_path / "h"), ModelDirectory("l", tmp_path / "l"))
    settings = SuiteSettings(models, tmp_path, cascade=ServedCascade(("l", "h"), (tmp_path / "d",)))

    resident, planned = (
        plan_suite(replace(settings, policy=policy), StateDirectory(tmp_path / "state")) for policy in ("", "joint")
    )

    flags = flags_of(planned, "controller")
    assert (flags["--light"], flags["--heavy"]) == ("l", "h")
    assert "--light" not in flags_of(resident, "controller")


def test_a_longer_cascade_has_a_discriminator_for_each_hand_over_and_is_planned_by_its_slo(tmp_path: Path) -> None:
    models = tuple(ModelDirectory(name, tmp_path / name) for name in "abc")
    cascade = ServedCascade(("a", "b", "c"), (tmp_path / "d1", tmp_path / "d2"))
    settings = SuiteSettings(models, tmp_path, cascade=cascade)

    plain, planned = (
        plan_suite(replace(settings, slo_s=slo_s), StateDirectory(tmp_path / "state")) for slo_s in (None, 9.0)
    )

    assert flags_of(plain, "discriminator")["--cascades"] == f"a>b={tmp_path / 'd1'},b>c={tmp_path / 'd2'}"
    assert flags_of(plain, "frontdoor")["--cascade"] == "a,b,c"
    assert "--cascade" not in flags_of(plain, "controller")
    assert "--other-models" not in flags_of(plain, "a-0")
    assert (flags_of(planned, "controller")["--cascade"], flags_of(planned, "controller")["--slo-s"]) == (
        "a>b>c",
        "9.0",
    )
    assert flags_of(planned, "a-0")["--other-models"] == f"{tmp_path}/b,{tmp_path}/c"


def test_suite_long_model_name_has_short_socket(tmp_path: Path) -> None:
    names = [f"{'x' * 60}-{number}" for number in range(2)]
    state = StateDirectory(tmp_path / "state")

    suite = plan_suite(SuiteSettings(tuple(ModelDirectory(name, tmp_path) for name in names), tmp_path), state)

    sockets = [flags_of(suite, f"{name}-0")["--listen"] for name in names]
    assert len(set(sockets)) == 2
    assert {len(address) - len(f"unix:{state.sockets}/") for address in sockets} == {24}


@pytest.mark.parametrize("part", ["a,b", "model "])
def test_suite_path_that_lists_would_split_is_rejected(part: str, tmp_path: Path) -> None:
    models = (ModelDirectory("a", tmp_path / "a"), ModelDirectory("b", tmp_path / part))

    plan_suite(SuiteSettings(models, tmp_path), StateDirectory(tmp_path / "state"))
    with pytest.raises(InvalidArgument, match="model: must be a path without a comma and without spaces at its ends"):
        plan_suite(SuiteSettings(models, tmp_path, policy="modm"), StateDirectory(tmp_path / "state"))


def test_suite_devices_of_emulated_fleet_are_rejected(settings: SuiteSettings, tmp_path: Path) -> None:
    refused = CliRunner().invoke(up, ["--emulate", str(tmp_path / "fleet.toml"), "--devices", "0", "--http", ""])

    assert refused.exit_code == 2
    assert "--devices and --place are for models" in refused.output


def test_profiles_are_those_of_the_devices_that_hold_the_model(settings: SuiteSettings, tmp_path: Path) -> None:
    assert settings.fleet is not None
    write_profiles(settings.fleet, tmp_path)

    light = profile_from_json(profile_file(tmp_path, "light").read_text())

    # Two devices take twice as long, one as long as profiled: the mean of three; the fast one runs batches of four.
    assert [batch.batch_size for batch in light.batches] == [1, 2, 4]
    assert light.batches[0].step.mean_s == pytest.approx(0.1 * 5 / 3)


def test_models_and_a_fleet_exclude_each_other(settings: SuiteSettings, tmp_path: Path) -> None:
    flags = ["--emulate", str(tmp_path / "fleet.toml"), "--model", "tiny-heavy", "--state-dir", str(tmp_path / "state")]

    refused = CliRunner().invoke(up, flags)

    assert refused.exit_code == 2
    assert "--model and --emulate exclude each other" in refused.output


@pytest.mark.parametrize("where", ["flag", "variable", "file"])
def test_a_token_file_for_all_is_the_suite_s_wherever_it_is_named(
    where: str, settings: SuiteSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes need a token of their own to call each other."""
    tokens, config = tmp_path / "tokens.toml", tmp_path / "suite.toml"
    tokens.touch()
    config.write_text(f'[common]\ntoken_file = "{tokens}"\n')
    flags = {"flag": ["--token-file", str(tokens)], "variable": [], "file": ["--config", str(config)]}[where]
    environ = {"PENTIMENTO_COMMON_TOKEN_FILE": str(tokens)} if where == "variable" else {}
    found: list[SuiteSettings] = []
    monkeypatch.setattr("pentimento.cli.up.run_suite", lambda settings, *_, **__: found.append(settings))

    emulated = ["--emulate", str(tmp_path / "fleet.toml"), "--http", "", "--admin-listen", "127.0.0.1:1"]
    CliRunner().invoke(up, [*emulated, *flags], env=environ, catch_exceptions=False)

    assert [settings.token_file for settings in found] == [tokens]


def gateway_arguments(settings: SuiteSettings, tmp_path: Path) -> tuple[str, ...]:
    suite = plan_suite(settings, StateDirectory(tmp_path / "state"))
    return next(process.arguments for process in suite.processes if process.name == "gateway")


def test_emulated_models_reuse_without_profiles(settings: SuiteSettings, tmp_path: Path) -> None:
    assert settings.fleet is not None
    cached = replace(settings, fleet=replace(settings.fleet, cache=True))

    assert "--unprofiled-reuse" in gateway_arguments(cached, tmp_path)


def test_real_models_reuse_by_their_profiles_unless_more_is_asked_for(tmp_path: Path) -> None:
    real = SuiteSettings((ModelDirectory("model", tmp_path),), tmp_path, selector_profiles=(Path("/a"), Path("/b")))

    told = gateway_arguments(real, tmp_path)

    assert told[told.index("--selector-profiles") + 1] == "/a,/b"
    assert "--unprofiled-reuse" not in told
    assert "--unprofiled-reuse" in gateway_arguments(replace(real, unprofiled_reuse=True), tmp_path)


def test_the_number_of_devices_of_each_kind_may_change(suite: Suite) -> None:
    assert [(group.name, group.count) for group in suite.groups] == [("unet_worker/slow", 2), ("unet_worker/fast", 1)]
    assert suite.groups[1].spec(7).name == "fast-7"


def test_the_number_of_embedders_controlnet_services_and_workers_may_change(tmp_path: Path) -> None:
    models = (ModelDirectory("tiny", Path("/tiny")),)
    settings = SuiteSettings(models, Path("/encoder"), copies=2, controlnets=Path("/registry.json"))
    suite = plan_suite(settings, StateDirectory(tmp_path))

    groups = {group.name: [group.spec(number).name for number in range(3)] for group in suite.groups}
    assert groups == {
        "embedder": ["embedder", "embedder-1", "embedder-2"],
        "controlnet_svc": ["controlnet-0", "controlnet-1", "controlnet-2"],
        "unet_worker": ["tiny-0", "tiny-1", "tiny-2"],
    }
    assert {spec.name for group in suite.groups for spec in group.specs} == {
        *("embedder", "controlnet-0", "tiny-0", "tiny-1")
    }


def test_controlnet_services_are_told_from_which_step_residuals_may_be_old(tmp_path: Path) -> None:
    models = (ModelDirectory("tiny", Path("/tiny")),)
    settings = SuiteSettings(models, Path("/encoder"), controlnets=Path("/registry.json"))
    assert "--pipelining-bounds" not in flags_of(plan_suite(settings, StateDirectory(tmp_path)), "controlnet-0")

    bounded = plan_suite(replace(settings, pipelining_bounds=Path("/bounds.json")), StateDirectory(tmp_path))

    assert flags_of(bounded, "controlnet-0")["--pipelining-bounds"] == "/bounds.json"


def test_a_served_cascade_has_a_discriminator_and_a_frontdoor_that_knows_it(tmp_path: Path) -> None:
    models = (ModelDirectory("heavy", tmp_path / "h"), ModelDirectory("light", tmp_path / "l"))
    cascade = ServedCascade(("light", "heavy"), (tmp_path / "d",), 0.25)

    suite = plan_suite(SuiteSettings(models, tmp_path, cascade=cascade), StateDirectory(tmp_path / "state"))

    assert flags_of(suite, "discriminator")["--cascades"] == f"light>heavy={tmp_path / 'd'}"
    flags = flags_of(suite, "frontdoor")
    assert (flags["--cascade"], flags["--confidence-threshold"]) == ("light,heavy", "0.25")
    assert flags["--default-model"] == "heavy"


@pytest.mark.parametrize(("http", "delay_s"), [("127.0.0.1:50480", "0"), ("0.0.0.0:50480", None)])
def test_edge_of_this_machine_alone_stops_without_delay(
    http: str, delay_s: str | None, settings: SuiteSettings, tmp_path: Path
) -> None:
    """No load balancer is in front of it; of any other the setting says for how long it stays."""
    suite = plan_suite(replace(settings, http=http), StateDirectory(tmp_path / "state"))

    assert flags_of(suite, "edge").get("--drain-delay-s") == delay_s
