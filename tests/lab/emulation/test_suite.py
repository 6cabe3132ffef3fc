"""Test the processes of a suite of emulated devices."""

import math
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from lab.emulation.emulated_worker.model import emulated_held_model
from lab.emulation.fleet_file import read_fleet
from lab.emulation.fleet_settings import fleet_settings
from lab.emulation.suite import EmulatedSuite, profile_file
from lab.runs.machine import ROOT
from pentimento.cli.up import up
from pentimento.domain.generation import FromNoise, GenerationSpec, Route, Scheduler
from pentimento.profiles.catalogue import StepProfiles, read_profiles
from pentimento.profiles.costs import costs_from_json
from pentimento.settings import load_settings
from pentimento.stores.objects import open_objects
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite import longest_drain_s, plan_suite
from pentimento.supervisor.suite_settings import Suite, SuiteSettings
from services.controller.settings import ControllerSettings

FLEETS = Path(__file__).parents[3] / "scenarios" / "fleets"
FLEET = """\
cascade = ["light", "heavy"]
confidence_threshold = 0.25

[[models]]
name = "light"
steps = 1
latency_s = { 1 = 0.1, 2 = 0.2, 4 = 0.3 }
quality = 0.5
quality_spread = 0.1

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

[deferral]
thresholds = [0.0, 0.5, 1.0]
shares = [0.0, 0.2, 1.0]
"""


@pytest.fixture
def settings(tmp_path: Path) -> SuiteSettings:
    (tmp_path / "fleet.toml").write_text(FLEET)
    return SuiteSettings((), tmp_path, emulated=EmulatedSuite.read(tmp_path / "fleet.toml"))


@pytest.fixture
def suite(settings: SuiteSettings, tmp_path: Path) -> Suite:
    return plan_suite(settings, StateDirectory(tmp_path / "state"))


def flags_of(suite: Suite, name: str) -> dict[str, str]:
    arguments = next(process.arguments for process in suite.processes if process.name == name)
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def arguments_of(suite: Suite, name: str) -> list[str]:
    """Return the arguments of a process."""
    return list(next(process.arguments for process in suite.processes if process.name == name))


def test_suite_has_a_worker_per_device(suite: Suite) -> None:
    names = [process.name for process in suite.processes]

    assert names == ["controller", "slow-0", "slow-1", "fast-0", "discriminator-0", "discriminator-1", "frontdoor"]
    assert flags_of(suite, "slow-1")["--fleet"].endswith("fleet.toml#slow")
    assert "--gateway-address" not in flags_of(suite, "frontdoor")


def test_a_fleet_with_a_cache_has_embedder_and_gateway(settings: SuiteSettings, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("cache = true\n" + FLEET)
    cached = SuiteSettings((), tmp_path, emulated=EmulatedSuite.read(tmp_path / "fleet.toml"))

    suite = plan_suite(cached, StateDirectory(tmp_path / "state"))

    assert [process.name for process in suite.processes][:2] == ["embedder", "gateway"]
    assert "--gateway-address" in flags_of(suite, "frontdoor")


def test_emulated_suite_has_stores_of_its_own(suite: Suite, tmp_path: Path) -> None:
    for name in ("frontdoor", "slow-0"):
        assert flags_of(suite, name)["--objects-url"] == f"file://{tmp_path}/state/emulated/objects"
    assert flags_of(suite, "frontdoor")["--ledger-url"] == f"sqlite:///{tmp_path}/state/emulated/frontdoor.sqlite"


@pytest.mark.parametrize("name", ["suite #1", "suité%20?"])
def test_stores_accept_any_name_of_state_directory(name: str, settings: SuiteSettings, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("cache = true\n" + FLEET)
    cached = replace(settings, emulated=EmulatedSuite.read(tmp_path / "fleet.toml"))
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
        ({"PENTIMENTO_COMMON_DRAIN_TIMEOUT_S": "120"}, 120.0),
        ({"PENTIMENTO_EMULATED_WORKER_DRAIN_TIMEOUT_S": "90", "PENTIMENTO_FRONTDOOR_DRAIN_TIMEOUT_S": "5"}, 90.0),
        ({"PENTIMENTO_UNET_WORKER_DRAIN_TIMEOUT_S": "90"}, 30.0),
    ],
)
def test_suite_drains_as_long_as_one_process(environ: dict[str, str], drain_s: float, suite: Suite) -> None:
    assert longest_drain_s(suite, None, environ) == drain_s


def test_frontdoor_arguments_have_cascade_and_profiles(suite: Suite, tmp_path: Path) -> None:
    flags = flags_of(suite, "frontdoor")

    assert (flags["--cascade"], flags["--confidence-threshold"]) == ("light,heavy", "0.25")
    assert [Path(file).name for file in flags["--profiles"].split(",")] == ["light.json", "heavy.json"]


def test_frontdoor_gets_steps_profile_of_emulated_model(tmp_path: Path) -> None:
    plugin = EmulatedSuite.read(ROOT / "scenarios" / "fleets" / "zoo-16.toml")
    plugin.write_files(tmp_path)

    flags = plugin.frontdoor_arguments(tmp_path)
    profiles = StepProfiles(read_profiles(Path(file) for file in flags[1].split(",")))

    held = emulated_held_model(plugin.fleet.model("tiny-heavy"), 1)
    spec = GenerationSpec("a ring", "", held.model, 64, 64, 50, held.default_guidance_scale, Scheduler.DDIM, seed=1)
    options = profiles.options(spec, Route("", FromNoise(), held.model, held.model_digest))
    assert min(option.total for option in options) == 15


def test_controller_arguments_have_policy_and_qualities(settings: SuiteSettings, tmp_path: Path) -> None:
    of_file = fleet_settings(read_fleet(tmp_path / "fleet.toml"))

    planned = plan_suite(replace(settings, policy="diffserve", slo_s=5.0), StateDirectory(tmp_path / "state"))

    flags = flags_of(planned, "controller")
    planned_with = load_settings(
        ControllerSettings, "controller", arguments_of(planned, "controller"), {}
    ).serving.serving()
    assert (flags["--allocator"], planned_with.slo_s) == ("diffserve", 5.0)
    assert replace(planned_with, slo_s=math.inf) == replace(of_file, step_count=50, discriminator_s=0.0)


@pytest.mark.parametrize(("given", "small"), [((), "sdxl,sana"), (("sana",), "sana")])
def test_shipped_mixture_is_planned_with_small_models(given: tuple[str, ...], small: str, tmp_path: Path) -> None:
    emulated = EmulatedSuite.read(FLEETS / "modm-16.toml")
    mixture = SuiteSettings((), tmp_path, emulated=emulated, policy="modm", small=given)

    planned = plan_suite(mixture, StateDirectory(tmp_path / "state"))

    flags = flags_of(planned, "controller")
    assert (flags["--heavy"], flags["--small"]) == ("sd35-large", small)
    serving = load_settings(ControllerSettings, "controller", arguments_of(planned, "controller"), {}).serving
    assert serving.serving().small_models == tuple(small.split(","))


@pytest.mark.parametrize("where", ["variable", "file"])
def test_controller_arguments_keep_other_settings(
    where: str, settings: SuiteSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "suite.toml"
    config.write_text('[controller]\nheavy = "light"\nlight = "heavy"\nqualities = ["heavy=0.8"]\n')
    if where == "variable":
        for name, value in (("HEAVY", "light"), ("LIGHT", "heavy"), ("QUALITIES", "heavy=0.8")):
            monkeypatch.setenv(f"PENTIMENTO_CONTROLLER_{name}", value)
    given = replace(settings, config_file=config if where == "file" else None)

    planned = plan_suite(given, StateDirectory(tmp_path / "state"))

    flags = flags_of(planned, "controller")
    assert (flags["--heavy"], flags["--light"], flags["--qualities"]) == (
        "light",
        "heavy",
        "heavy=0.8,light=0.5:0.1:1.0",
    )


def test_suite_devices_of_emulated_fleet_are_rejected(settings: SuiteSettings, tmp_path: Path) -> None:
    refused = CliRunner().invoke(up, ["--emulate", str(tmp_path / "fleet.toml"), "--devices", "0", "--http", ""])

    assert refused.exit_code == 2
    assert "--devices and --place are for models" in refused.output


def test_profiles_are_means_over_devices_of_a_model(settings: SuiteSettings, tmp_path: Path) -> None:
    assert settings.emulated is not None
    settings.emulated.write_files(tmp_path)

    light = costs_from_json(profile_file(tmp_path, "light").read_text())

    # Two devices take twice as long, one as long as profiled: the mean of three; the fast one runs batches of four.
    assert [batch.batch_size for batch in light.batches] == [1, 2, 4]
    assert light.batches[0].step.mean_s == pytest.approx(0.1 * 5 / 3)


def test_models_and_a_fleet_exclude_each_other(settings: SuiteSettings, tmp_path: Path) -> None:
    flags = ["--emulate", str(tmp_path / "fleet.toml"), "--model", "tiny-heavy", "--state-dir", str(tmp_path / "state")]

    refused = CliRunner().invoke(up, flags)

    assert refused.exit_code == 2
    assert "--model and --emulate exclude each other" in refused.output


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--small", "light"], "--small needs --policy modm, joint or resident-mixture"),
        (["--policy", "modm", "--small", "light,sdxl"], "--small must be some of the fleet's light, heavy, got 'sdxl'"),
        (["--policy", "modm", "--small", "light,light"], "--small must be models separated by commas, each once"),
        (["--policy", "modm", "--profile-rule", "least"], "is not one of 'profile', 'minimum', 'lower_bound', 'mean'"),
        (["--handover", "on"], "'on' is not one of 'auto', 'off'"),
    ],
)
def test_up_names_allowed_values(flags: list[str], told: str, settings: SuiteSettings, tmp_path: Path) -> None:
    refused = CliRunner().invoke(up, ["--emulate", str(tmp_path / "fleet.toml"), "--http", "", *flags])

    assert refused.exit_code == 2
    assert told in " ".join(refused.output.split())


@pytest.mark.parametrize("where", ["flag", "variable", "file"])
def test_common_token_file_is_the_suites(
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
    (tmp_path / "fleet.toml").write_text("cache = true\n" + FLEET)
    cached = replace(settings, emulated=EmulatedSuite.read(tmp_path / "fleet.toml"))

    arguments = gateway_arguments(cached, tmp_path)

    assert arguments[arguments.index("--thresholds") + 1].startswith("latent:0.65:0.1,latent:0.75:0.2,")


def test_emulated_cache_goes_by_tables_of_fleet(settings: SuiteSettings, tmp_path: Path) -> None:
    table = "\n[reuse.images]\nsimilarity = [0.5, 0.9]\nsaved_share = [0.1, 0.6]\n"
    (tmp_path / "fleet.toml").write_text("cache = true\n" + FLEET + table)
    cached = replace(settings, emulated=EmulatedSuite.read(tmp_path / "fleet.toml"))

    arguments = gateway_arguments(cached, tmp_path)

    assert arguments[arguments.index("--thresholds") + 1] == "image:0.5:0.1,image:0.9:0.6"
    assert plan_suite(cached, StateDirectory(tmp_path / "state")).processes[0].module == "lab.emulation.embedder"


def test_emulated_mixture_has_its_small_models() -> None:
    """A fleet without a cascade: the other models refine hits, in the file's order."""
    suite = EmulatedSuite.read(Path("scenarios/fleets/modm-16.toml"))

    flags = suite.controller_arguments(None)

    assert flags[flags.index("--small") + 1] == "sdxl,sana"
    planned = load_settings(ControllerSettings, "controller", [*flags, "--allocator", "modm"], {}).policy()
    assert planned.name == "modm"


def test_the_number_of_devices_of_each_kind_may_change(suite: Suite) -> None:
    assert [(group.name, group.count) for group in suite.groups] == [("unet_worker/slow", 2), ("unet_worker/fast", 1)]
    assert suite.groups[1].spec(7).name == "fast-7"
