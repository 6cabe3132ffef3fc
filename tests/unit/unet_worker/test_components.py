"""Components of a host, listed and changed from the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pentimento.cli import cli
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.policies.components import Utility
from pentimento.stores.components import ComponentStore, ObjectRemote
from pentimento.stores.objects import open_objects
from services.unet_worker.components import listed
from services.unet_worker.settings import ComponentAction, ComponentsSettings


def test_components_are_listed_pinned_and_dropped(tmp_path: Path) -> None:
    objects = open_objects(f"file://{tmp_path / 'objects'}")
    store, remote = ComponentStore(tmp_path / "components", 2**20, 0, Utility), ObjectRemote(objects)
    one, two = (objects.put(name, name.encode()) for name in ("one", "two"))
    for reference in (one, two):
        store.read(reference, remote)
    place = tmp_path / "components"

    pinned = listed(ComponentsSettings(place, ComponentAction.PIN, one.digest))
    assert {found.digest: found.pinned for found in pinned} == {one.digest: True, two.digest: False}

    def drop_in_use(held: object) -> None:
        with pytest.raises(FailedPrecondition, match="in use"):
            listed(ComponentsSettings(place, ComponentAction.DROP, two.digest))

    store.load(two, remote, drop_in_use)
    (left,) = listed(ComponentsSettings(place, ComponentAction.DROP, two.digest))
    assert left.digest == one.digest
    with pytest.raises(InvalidArgument, match="digest: must be sha256"):
        listed(ComponentsSettings(place, ComponentAction.PIN, "../one"))

    done = CliRunner().invoke(cli, ["components", "pin", one.digest, "--off", "--directory", str(place)])
    assert done.output == f"{one.digest} is not pinned\n"
    done = CliRunner().invoke(cli, ["components", "list", "--state-dir", str(tmp_path), "--json"])
    assert json.loads(done.output)["pinned"] is False


@pytest.mark.parametrize(("flags", "output"), [([], "no component is held\n"), (["--json"], "")])
def test_components_list_of_empty_directory_prints_one_line(tmp_path: Path, flags: list[str], output: str) -> None:
    done = CliRunner().invoke(cli, ["components", "list", "--directory", str(tmp_path), *flags])

    assert (done.exit_code, done.output) == (0, output)
