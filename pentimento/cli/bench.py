"""`pentimento bench`: the lab's commands, by name and one line; they are imported when they are called."""

import click

from pentimento.plugins import COMMANDS, load_plugin

PLUGINS = {
    "load": "play a workload on a running suite",
    "report": "compare runs",
    "allocation": "draw how the allocation moved",
    "trace-study": "study what a cache could reuse of a log of prompts",
}
# Names of earlier versions.
RENAMED = {
    "profile": "profile cost MODEL",
    "selector-profile": "profile reuse MODEL",
    "thinning-profile": "profile steps MODEL",
    "handover-profile": "profile handover HEAVY --light LIGHT",
    "lora-bound": "profile lora MODEL",
}


class BenchGroup(click.Group):
    """Load the lab's subcommands."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(PLUGINS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in RENAMED:
            raise click.UsageError(f"`bench {name}` is now `pentimento {RENAMED[name]}`")
        if name not in PLUGINS:
            return None
        command = load_plugin(COMMANDS, f"bench.{name}", f"pentimento bench {name}")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(PLUGINS.items()))


@click.group(cls=BenchGroup)
def bench() -> None:
    """Measure a suite under load."""
