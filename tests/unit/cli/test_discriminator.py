"""`pentimento discriminator train`, and a cascade with a discriminator that knows nothing."""

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pentimento.cli import cli
from pentimento.domain.errors import FailedPrecondition, NotFound
from pentimento.files.discriminator_records import RECORD_FILE
from pentimento.supervisor.child import SOURCE_ROOT


def test_train_becomes_training_on_suites_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append(arguments))
    monkeypatch.setenv("PYTHONPATH", "")
    (tmp_path / "objects").mkdir()
    words = ["discriminator", "train", "a,b", "--out", str(tmp_path / "new"), "--state-dir", str(tmp_path)]

    CliRunner().invoke(cli, [*words, "--network", "narrow"], catch_exceptions=False)

    module = "services.discriminator.training"
    given = ["--cascade", "a,b", "--out", str(tmp_path / "new"), "--objects-url", (tmp_path / "objects").as_uri()]
    assert started == [[sys.executable, "-P", "-m", module, *given, "--network", "narrow"]]
    assert (SOURCE_ROOT / Path(*module.split(".")) / "__main__.py").is_file()


def test_train_without_objects_names_missing_option(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["discriminator", "train", "a,b", "--out", "new", "--state-dir", str(tmp_path)])

    assert isinstance(done.exception, NotFound)
    assert "give --state-dir, or --objects-url of the suite" in str(done.exception)


def test_up_refuses_discriminator_of_other_models(tmp_path: Path) -> None:
    (tmp_path / RECORD_FILE).write_text(json.dumps({"cascade": "sd-turbo>sdxl"}))
    words = ["up", "--cascade", "tiny-light,tiny-heavy", "--discriminator", str(tmp_path)]

    done = CliRunner().invoke(cli, [*words, "--state-dir", str(tmp_path / "state")])

    assert isinstance(done.exception, FailedPrecondition)
    assert "was trained for sd-turbo>sdxl, not for tiny-light>tiny-heavy" in str(done.exception)
    assert not (tmp_path / "state").exists()


def test_up_refuses_discriminator_that_knows_nothing(tmp_path: Path) -> None:
    (tmp_path / RECORD_FILE).write_text(json.dumps({"auroc": [0.52, 0.46, 0.58]}))
    words = ["up", "--cascade", "tiny-light,tiny-heavy", "--discriminator", str(tmp_path)]

    done = CliRunner().invoke(cli, [*words, "--state-dir", str(tmp_path / "state")])

    assert isinstance(done.exception, FailedPrecondition)
    assert "of tiny-light>tiny-heavy carries no information: its AUROC" in str(done.exception)
    assert not (tmp_path / "state").exists()
