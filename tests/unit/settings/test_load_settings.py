"""Precedence, types, and one clear line for every unknown or wrong setting."""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.settings import SettingsError, load_settings, setting
from pentimento.settings.loading import setting_of

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


class Device(Enum):
    AUTO = "auto"
    CPU = "cpu"


@dataclass(frozen=True)
class Nested:
    listen: tuple[str, ...] = ("127.0.0.1:0",)
    timeout_s: float = setting(30.0, help="seconds to wait", minimum=0, maximum=60)


@dataclass(frozen=True)
class Settings:
    rpc: Nested
    model: Path = setting(Path("models"), help="where the models are")
    weights: Path | None = setting(None, help="weights to load", must_exist=True)
    threads: int = setting(1, help="threads of the engine, 100 % of a core each", minimum=1)
    device: Device = Device.AUTO
    compile: bool = False
    name: str = ""
    sizes_px: tuple[int, ...] = setting((), help="sides of pictures", minimum=8)

    def __post_init__(self) -> None:
        if self.name == "root":
            raise ValueError("--name must not be root")


@dataclass(frozen=True)
class Required:
    address: str = setting(help="where to listen")


def load(*argv: str, environ: dict[str, str] | None = None) -> Settings:
    return load_settings(Settings, "embedder", argv, environ or {})


def refusal(*argv: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(*argv, environ=environ)
    return str(caught.value)


def toml(folder: Path, text: str) -> str:
    file = folder / "pentimento.toml"
    file.write_text(text)
    return str(file)


def test_load_settings_without_sources_returns_defaults() -> None:
    assert load() == Settings(Nested())


def test_load_settings_source_wins_over_lower_ones(tmp_path: Path) -> None:
    layers: list[tuple[list[str], dict[str, str]]] = [([], {})]
    file = toml(tmp_path, "[common]\nthreads = 2\n")
    layers.append((["--config", file], {}))
    own = tmp_path / "own.toml"
    own.write_text("[common]\nthreads = 2\n[embedder]\nthreads = 3\n")
    layers.append((["--config", str(own)], {}))
    layers.append((["--config", str(own)], {"PENTIMENTO_COMMON_THREADS": "4"}))
    both = {"PENTIMENTO_COMMON_THREADS": "4", "PENTIMENTO_EMBEDDER_THREADS": "5"}
    layers.append((["--config", str(own)], both))
    layers.append((["--config", str(own), "--threads", "6"], both))

    assert [load(*argv, environ=environ).threads for argv, environ in layers] == [1, 2, 3, 4, 5, 6]


def test_load_settings_reads_file_named_by_environment(tmp_path: Path) -> None:
    file = toml(tmp_path, "[embedder]\nthreads = 3\n")

    assert load(environ={"PENTIMENTO_CONFIG": file}).threads == 3


def test_load_settings_reads_each_type_from_text() -> None:
    flags = ["--listen", "unix:/a,b:1", "--listen", "c:2", "--timeout-s", "2.5", "--model", "/m", "--threads", "4"]
    flags += ["--device", "cpu", "--compile", "--name", "x", "--sizes-px", "64,128"]

    assert load(*flags) == Settings(
        rpc=Nested(("unix:/a", "b:1", "c:2"), 2.5),
        model=Path("/m"),
        threads=4,
        device=Device.CPU,
        compile=True,
        name="x",
        sizes_px=(64, 128),
    )


def test_load_settings_reads_each_type_from_toml(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        """
        [embedder]
        listen = ["unix:/a", "b:1"]
        timeout_s = 2
        device = "cpu"
        compile = true
        sizes_px = [64, 128]
        """,
    )

    assert load("--config", file) == Settings(
        rpc=Nested(("unix:/a", "b:1"), 2.0), device=Device.CPU, compile=True, sizes_px=(64, 128)
    )


def test_load_settings_flag_turns_switch_off() -> None:
    assert load("--no-compile", environ={"PENTIMENTO_EMBEDDER_COMPILE": "on"}).compile is False


def test_load_settings_empty_variable_unsets_path() -> None:
    assert load(environ={"PENTIMENTO_EMBEDDER_WEIGHTS": ""}).weights is None


def test_load_settings_file_of_all_services(tmp_path: Path) -> None:
    tables = re.findall(r"table `\[(\w+)\]`", REFERENCE.read_text())
    assert {"embedder", "edge", "emulated_worker"} <= set(tables)

    file = toml(tmp_path, "".join(f'[{table}]\nname = "{table}"\n' for table in tables))

    assert load("--config", file).name == "embedder"


def test_load_settings_ignores_other_services(tmp_path: Path) -> None:
    file = toml(tmp_path, "[frontdoor]\nqueue_limit = 7\n[common]\nobjects_url = 'file:///o'\n")

    assert load("--config", file, environ={"PENTIMENTO_FRONTDOOR_QUEUE_LIMIT": "8"}) == Settings(Nested())


WRONG: list[tuple[list[str], dict[str, str], list[str]]] = [
    (["--treads", "1"], {}, ["--treads"]),
    (["--thr", "1"], {}, ["--thr"]),
    (["stray"], {}, ["stray"]),
    (["--threads"], {}, ["--threads", "expected one argument"]),
    (["--threads", "0"], {}, ["--threads", "at least 1", "got 0"]),
    (["--sizes-px", "64,4"], {}, ["--sizes-px", "at least 8", "got 4"]),
    (["--threads", "two"], {}, ["--threads", "whole number", "'two'"]),
    (["--threads", "1.5"], {}, ["--threads", "whole number"]),
    (["--timeout-s", "nan"], {}, ["--timeout-s", "finite number", "'nan'"]),
    (["--timeout-s", "inf"], {}, ["--timeout-s", "finite number"]),
    (["--timeout-s", "61"], {}, ["--timeout-s", "at most 60", "got 61"]),
    (["--device", "tpu"], {}, ["--device", "auto, cpu", "'tpu'"]),
    (["--weights", "/nonexistent/w"], {}, ["--weights", "no such file", "/nonexistent/w"]),
    (["--weights", "a" * 300], {}, ["--weights", "File name too long"]),
    (["--model", "a\0b"], {}, ["--model", "NUL"]),
    (["--model", "~nobody-of-that-name/m"], {}, ["--model", "no home", "~nobody-of-that-name/m"]),
    (["--name", "root"], {}, ["--name must not be root"]),
    ([], {"PENTIMENTO_EMBEDDER_TREADS": "1"}, ["PENTIMENTO_EMBEDDER_TREADS", "did you mean threads?"]),
    ([], {"PENTIMENTO_EMBEDDER_THREADS": "x"}, ["--threads", "PENTIMENTO_EMBEDDER_THREADS"]),
    ([], {"PENTIMENTO_COMMON_TREADS": "1"}, ["PENTIMENTO_COMMON_TREADS", "did you mean threads?"]),
    ([], {"PENTIMENTO_EMBEDDER_COMPILE": "perhaps"}, ["--compile", "true or false", "'perhaps'"]),
    (["--config", "/nonexistent.toml"], {}, ["/nonexistent.toml", "No such file"]),
]


def is_one_line_with(told: str, *words: str) -> bool:
    return told.startswith("embedder: ") and "\n" not in told and all(word in told for word in words)


def test_load_settings_refuses_wrong_flag_or_variable_in_one_line() -> None:
    said = [(refusal(*argv, environ=environ), words) for argv, environ, words in WRONG]

    assert [(told, words) for told, words in said if not is_one_line_with(told, *words)] == []


@pytest.mark.parametrize(
    ("argv", "environ", "text"),
    [
        (["--trace-file", "t.jsonl"], {}, ""),
        ([], {"PENTIMENTO_EMBEDDER_TRACE_FILE": "t.jsonl"}, ""),
        ([], {"PENTIMENTO_COMMON_TRACE_FILE": "t.jsonl"}, ""),
        ([], {}, "[embedder]\ntrace_file = 't.jsonl'\n"),
    ],
)
def test_load_settings_refuses_removed_setting_with_its_reason(
    tmp_path: Path, argv: list[str], environ: dict[str, str], text: str
) -> None:
    told = refusal(*argv, *(["--config", toml(tmp_path, text)] if text else []), environ=environ)

    assert "it was removed: `python -m lab.fixtures.traced_process` writes such files" in told


WRONG_FILES: list[tuple[bytes, list[str]]] = [
    (b"[embedder]\ntreads = 1\n", ["treads", "[embedder]", "did you mean threads?"]),
    (b"[common]\ntreads = 1\n", ["treads", "[common]", "did you mean threads?"]),
    (b"[embeder]\nthreads = 1\n", ["[embeder]", "did you mean embedder?"]),
    (b"threads = 1\n", ["threads"]),
    (b"embedder = 1\n", ["embedder must be a table"]),
    (b"[embedder\n", ["not valid TOML"]),
    (b"[embedder]\nthreads = true\n", ["--threads", "whole number", "threads of [embedder]"]),
    (b"[embedder]\nname = 7\n", ["--name", "text"]),
    (b"[embedder]\nlisten = 7\n", ["--listen", "list"]),
    (b"[embedder]\ncompile = 1\n", ["--compile", "true or false"]),
    (b"[embedder]\ntimeout_s = 1" + b"0" * 400, ["--timeout-s", "finite number"]),
    (b"\xff\xfe\x00", ["not valid TOML"]),
]


def test_load_settings_refuses_wrong_file_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "pentimento.toml"
    for data, words in WRONG_FILES:
        file.write_bytes(data)

        assert is_one_line_with(refusal("--config", str(file)), *words)


def test_load_settings_without_required_one_is_refused() -> None:
    with pytest.raises(SettingsError, match="--address is required"):
        load_settings(Required, "frontdoor", [], {})


def test_load_settings_help_lists_each_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load("--help")

    told = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    assert "threads of the engine, 100 % of a core each (default: 1; PENTIMENTO_EMBEDDER_THREADS)" in told
    assert "--timeout-s" in told


def test_load_settings_refuses_two_fields_of_one_name() -> None:
    @dataclass(frozen=True)
    class Twice:
        rpc: Nested
        timeout_s: float = 1.0

    with pytest.raises(TypeError, match="timeout_s"):
        load_settings(Twice, "embedder", [], {})


def test_load_settings_nested_class_twice_has_one_value() -> None:
    @dataclass(frozen=True)
    class Both:
        server: Nested
        channel: Nested

    loaded = load_settings(Both, "embedder", ["--timeout-s", "7"], {})

    assert (loaded.server.timeout_s, loaded.channel.timeout_s) == (7.0, 7.0)


@given(st.text(max_size=30), st.text(max_size=30))
def test_load_settings_any_text_is_taken_or_refused(threads: str, timeout: str) -> None:
    environ = {"PENTIMENTO_EMBEDDER_THREADS": threads, "PENTIMENTO_EMBEDDER_TIMEOUT_S": timeout}
    try:
        loaded = load(environ=environ)
    except SettingsError as error:
        assert "\n" not in str(error)
    else:
        assert loaded.threads >= 1
        assert 0 <= loaded.rpc.timeout_s <= 60


@dataclass(frozen=True)
class Draining:
    drain_timeout_s: float = setting(30.0, help="seconds for running work", minimum=0, maximum=3600)


FILE = "[common]\ndrain_timeout_s = 40\n[embedder]\ndrain_timeout_s = 50\nthreads = 4\n"
OWN, COMMON = {"PENTIMENTO_EMBEDDER_DRAIN_TIMEOUT_S": "70"}, {"PENTIMENTO_COMMON_DRAIN_TIMEOUT_S": "60"}


@pytest.mark.parametrize(
    ("section", "text", "environ", "value"),
    [
        ("edge", "", {}, 30.0),
        ("edge", FILE, {}, 40.0),
        ("embedder", FILE, {}, 50.0),
        ("embedder", FILE, COMMON, 60.0),
        ("embedder", FILE, COMMON | OWN | {"PENTIMENTO_EMBEDDER_THREADS": "4"}, 70.0),
    ],
)
def test_setting_of_reads_one_setting_by_precedence(
    section: str, text: str, environ: dict[str, str], value: float, tmp_path: Path
) -> None:
    file = toml(tmp_path, text)

    assert setting_of(Draining, "drain_timeout_s", section, None, environ | {"PENTIMENTO_CONFIG": file}) == value
    assert setting_of(Draining, "drain_timeout_s", section, Path(file), environ) == value


def test_setting_of_wrong_value_names_it(tmp_path: Path) -> None:
    file = toml(tmp_path, "[edge]\ndrain_timeout_s = 4000\n")

    with pytest.raises(SettingsError, match=r"edge: --drain-timeout-s must be at most 3600.*\[edge\]"):
        setting_of(Draining, "drain_timeout_s", "edge", Path(file), {})
