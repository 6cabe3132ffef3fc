"""Reports on the terminal and in files, whose names say the form."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from pentimento.domain.errors import InvalidArgument
from pentimento.files.folders import check_folder
from pentimento.reports import Report, Run, as_html, as_text, check_png, load_run, make_report, save_png
from pentimento.reports import as_json as report_json

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
