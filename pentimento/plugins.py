"""Find plug-ins of other distributions by their entry points: policies, suites, commands and services.

Imports happen in the functions: every run of the command imports this module, and few look for a plug-in.
"""

from typing import TYPE_CHECKING, Any

from pentimento.settings.declaration import SettingsError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS, POLICIES = "pentimento.commands", "pentimento.policies"
SERVICES, SUITES = "pentimento.services", "pentimento.suites"
LAB = "pip install 'pentimento[lab]'"
# Policies of every installation; `policies.plan` has their decisions.
POLICY_NAMES = ("resident", "diffserve", "modm", "resident-mixture", "joint", "many-models")
LAB_POLICIES = (
    "aimd",
    "clipper-heavy",
    "clipper-light",
    "diffserve-milp",
    "diffserve-relaxed",
    "nirvana-only",
    "no-queueing-model",
    "proteus",
    "retrieval-only",
    "static-cascade",
    "static-threshold",
    "vanilla",
)


def load_plugin(group: str, name: str, asked: str) -> Any:
    """Import the object called `name` in a group of entry points. Raises SettingsError, one line that says what to
    install for `asked`, where no distribution has it, or why it cannot be imported."""
    found = _entry_point(group, name, asked)
    try:
        return found.load()
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"`{asked}`: {found.value} cannot be imported: {error}") from error


def plugin_module(group: str, name: str, asked: str) -> str:
    """Return the module of an entry point without importing it. Raises SettingsError like `load_plugin`."""
    return _entry_point(group, name, asked).value


def check_policy(name: str, flag: str) -> None:
    """Raise SettingsError for a policy that is neither built in nor installed: what to install, or the names."""
    from difflib import get_close_matches
    from importlib.metadata import entry_points

    known = {*POLICY_NAMES, *(found.name for found in entry_points(group=POLICIES))}
    if name in known:
        return
    if name in LAB_POLICIES:
        raise _missing(f"{flag} {name}")
    close = get_close_matches(name, (*known, *LAB_POLICIES), n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise SettingsError(f"{flag} must be one of {', '.join(sorted(known))}, got {name!r}{hint}")


def _entry_point(group: str, name: str, asked: str) -> "EntryPoint":
    from importlib.metadata import entry_points

    for found in entry_points(group=group, name=name):
        return found
    raise _missing(asked)


def _missing(asked: str) -> SettingsError:
    return SettingsError(f"`{asked}` needs `{LAB}`")
