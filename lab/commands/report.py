"""Write reports to the terminal and to files, by the suffix of their names."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lab.runs import Report, Run, as_html, as_text, check_png, load_run, make_report, save_png
from lab.runs import as_json as report_json
from pentimento.cli.options import FiniteRange, json_option
from pentimento.domain.errors import InvalidArgument
from pentimento.files.json_values import check_folder

FILE = click.Path(dir_okay=False, path_type=Path)
PRESENT = click.Path(exists=True, dir_okay=False, path_type=Path)
SEED = click.IntRange(min=0)
FORMS = (".html", ".json", ".png", ".txt")


def tell(runs: Sequence[Path], warm_up_s: float, files: Sequence[Path], *, as_json: bool = False) -> None:
    check_forms(files, len(runs))
    show([report_of(load_run(path), warm_up_s) for path in runs], files, as_json=as_json)


def check_forms(files: Sequence[Path], runs: int) -> None:
    """Before anything is run."""
    for file in files:
        if file.suffix not in FORMS:
            raise InvalidArgument.of("report", f"must end in one of {', '.join(FORMS)}, got {file.name}")
        if file.suffix == ".json" and runs != 1:
            raise InvalidArgument.of("report", f"a .json is of one run, got {runs}: .html, .png and .txt take several")
        check_folder("report", file)
        if file.suffix == ".png":
            check_png()


def report_of(run: Run, warm_up_s: float) -> Report:
    return make_report(run.name, run.records, run.provenance, warm_up_s=warm_up_s)


def show(reports: Sequence[Report], files: Sequence[Path], *, as_json: bool = False) -> None:
    """Print the reports, as JSON one a line, and write them to the files."""
    if as_json:
        for report in reports:
            click.echo(json.dumps(json.loads(report_json(report)), ensure_ascii=False))
    else:
        click.echo(as_text(reports), nl=False)
    for file in files:
        if file.suffix == ".png":
            save_png(reports, file)
        else:
            file.write_text({".html": as_html, ".txt": as_text, ".json": _json_of_one}[file.suffix](reports), "utf-8")


def _json_of_one(reports: Sequence[Report]) -> str:
    return report_json(reports[0])


def report_options(command: Any) -> Any:
    """Where a report goes besides the terminal, and what of the run it leaves out."""
    for option in (
        click.option(
            "--warm-up", type=FiniteRange(min=0.0), default=0.0, metavar="SECONDS", help="leave the first requests out"
        ),
        click.option(
            "-r",
            "--report",
            "reports",
            type=FILE,
            multiple=True,
            help="write the report there too: .html, .json (of one run), .png or .txt",
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("runs", type=PRESENT, nargs=-1, required=True)
@report_options
@json_option
def report(runs: tuple[Path, ...], warm_up: float, reports: tuple[Path, ...], as_json: bool) -> None:
    """Lays RUNS (records that `bench load --save`, an emulated fleet or a simulation wrote) side by side."""
    tell(runs, warm_up, reports, as_json=as_json)
