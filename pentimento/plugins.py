"""Find what other distributions add: policies, suites, commands and services, by their entry points."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pentimento.settings.errors import SettingsError

COMMANDS, SERVICES, SUITES = "pentimento.commands", "pentimento.services", "pentimento.suites"
LAB = "pip install 'pentimento[lab]'"


def load_plugin(group: str, name: str, asked: str) -> Any:
    """Import the object called `name` in a group of entry points. Raises SettingsError, one line that says what to
    install for `asked`, where no distribution has it."""
    return _entry_point(group, name, asked).load()


def plugin_module(group: str, name: str, asked: str) -> str:
    """Return the module of an entry point without importing it. Raises SettingsError like `load_plugin`."""
    return _entry_point(group, name, asked).value


def _entry_point(group: str, name: str, asked: str) -> EntryPoint:
    for found in entry_points(group=group, name=name):
        return found
    raise SettingsError(f"`{asked}` needs `{LAB}`")
