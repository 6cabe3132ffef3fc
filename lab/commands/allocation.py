"""`pentimento bench allocation`: the allocation over time, with what became of a run meanwhile."""

from pathlib import Path

import click

from lab.commands.report import FILE, PRESENT, report_of
from lab.runs import check_png, load_run, save_panels, sheet_svg
from lab.runs.allocations import allocation_panels, read_samples
from lab.runs.page import STYLE
from lab.runs.panels import panels
from pentimento.domain.errors import InvalidArgument
from pentimento.files.json_values import check_folder

FORMS = (".png", ".svg")
TITLE = "Pentimento: the allocation over time"


def draw(record: Path, run: Path | None, output: Path) -> None:
    """Write the panels of a record and of a run, each over its own time. Raises InvalidArgument."""
    if output.suffix not in FORMS:
        raise InvalidArgument.of("output", f"must end in one of {', '.join(FORMS)}, got {output.name}")
    check_folder("output", output)
    if output.suffix == ".png":
        check_png()
    samples = read_samples(record)
    if not samples:
        raise InvalidArgument.of("record", f"must have at least one look, {record} has none")
    drawn = allocation_panels(samples)
    if run is not None:
        drawn += panels([report_of(load_run(run), 0.0)])
    if output.suffix == ".png":
        save_panels(drawn, output, TITLE)
    else:
        output.write_text(sheet_svg(TITLE, drawn, STYLE), encoding="utf-8")


@click.command()
@click.argument("record", type=PRESENT)
@click.option(
    "--run", type=PRESENT, help="records of `bench load --save` at the same time: latency, violations, quality"
)
@click.option("-o", "--output", type=FILE, required=True, help="where it is drawn: .svg or .png")
def allocation(record: Path, run: Path | None, output: Path) -> None:
    """Draws a RECORD of `pentimento status --watch --record`: workers by model, thresholds, admission and violations
    over time."""
    draw(record, run, output)
