"""Run `pentimento up` with toys as processes. Arguments: state directory, flags of toys. PUBLIC: its `--listen`."""

import os
import sys
from pathlib import Path

from pentimento.cli import suite_running
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite import unix_address
from pentimento.supervisor.suite_settings import ProcessSpec, Suite, SuiteSettings

JSON = "--json"


def toys(settings: SuiteSettings, state: StateDirectory) -> Suite:
    def toy(name: str, stage: int) -> ProcessSpec:
        address = unix_address(state, name)
        flags = (
            "--listen",
            address,
            "--diary",
            str(state.path / "diary"),
            *(flag for flag in sys.argv[2:] if flag != JSON),
        )
        return ProcessSpec(name, "toy_service", flags, address, stage)

    return Suite((toy("frontdoor", 0), toy("worker", 1)))


if __name__ == "__main__":
    suite_running.plan_suite = toys
    nothing = SuiteSettings(models=(), encoder=Path(), public=os.environ.get("PUBLIC", "127.0.0.1:0"))
    sys.exit(
        suite_running.run_suite(nothing, StateDirectory(Path(sys.argv[1])), show_logs=True, as_json=JSON in sys.argv)
    )
