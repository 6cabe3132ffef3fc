"""Find what other distributions add: policies, suites, commands and services, by their entry points."""

from importlib.metadata import entry_points
from typing import Any

from pentimento.settings.errors import SettingsError

COMMANDS = "pentimento.commands"
LAB = "pip install 'pentimento[lab]'"


def load_plugin(group: str, name: str, asked: str) -> Any:
    """Import the object called `name` in a group of entry points. Raises SettingsError, one line that says what to
    install for `asked`, where no distribution has it."""
    for found in entry_points(group=group, name=name):
        return found.load()
    raise SettingsError(f"`{asked}` needs `{LAB}`")
