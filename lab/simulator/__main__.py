"""`python -m lab.simulator SCENARIO`: plays a scenario file and prints the policies side by side."""

import argparse
import shutil
import sys
from pathlib import Path
from random import Random

from lab.planners.registry import POLICIES
from lab.runs import Report, Run, as_html, as_json, as_text, make_report, save_png, save_run
from lab.simulator.scenario_file import ScenarioFile, read_scenario
from lab.simulator.simulation import Simulation
from pentimento.domain.errors import FailedPrecondition, PentimentoError
from pentimento.policies.eviction_rules import EVICTION_NAMES


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        file = read_scenario(options.scenario, options.policy or (), options.seed, options.eviction)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
        reports = play(file, options.out)
    except PentimentoError as error:
        return _failed(_line(error))
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}")
    print("\n\n".join(as_json(report) for report in reports) if options.json else _shown(reports))
    if options.out is not None:
        pages = ", ".join(sorted(page.name for page in options.out.glob("report.*")))
        _tell(f"{pages} and the records are in {options.out}")
    return 0


def play(file: ScenarioFile, out: Path | None = None) -> list[Report]:
    """Return a report for each policy. Records and images go to the existing folder `out`, if one is given."""
    reports = []
    for scenario in file.scenarios:
        _tell(f"playing {scenario.name}, {len(file.workload.arrivals)} requests")
        records = Simulation(scenario, file.workload, Random(file.seed)).run()
        provenance = {**file.provenance, "policy": scenario.name, "workload": dict(file.workload.provenance)}
        reports.append(make_report(scenario.name, records, provenance, warm_up_s=file.warm_up_s))
        if out is not None:
            save_run(Run(scenario.name, provenance, tuple(records)), out / f"{scenario.name}.jsonl.gz")
    if out is not None:
        _save(file, reports, out)
    return reports


def _save(file: ScenarioFile, reports: list[Report], out: Path) -> None:
    for report in reports:
        (out / f"{report.name}.json").write_text(as_json(report) + "\n")
    (out / "report.txt").write_text(as_text(reports) + "\n")
    (out / "report.html").write_text(as_html(reports, f"{file.name} (simulated)"))
    try:
        save_png(reports, out / "report.png", f"{file.name} (simulated)")
    except FailedPrecondition as error:
        _tell(f"no report.png: {error.message}")


def _shown(reports: list[Report]) -> str:
    """Return reports in as many columns as fit the terminal."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    tables: list[list[Report]] = [[]]
    for report in reports:
        if tables[-1] and max(len(line) for line in as_text([*tables[-1], report]).splitlines()) > room:
            tables.append([])
        tables[-1].append(report)
    return "\n".join(as_text(table) for table in tables)


def _tell(message: str) -> None:
    print(f"pentimento: {message}", file=sys.stderr, flush=True)


def _failed(message: str) -> int:
    _tell(message)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pentimento simulate", description="Plays a scenario in virtual time.")
    parser.add_argument("scenario", type=Path, metavar="SCENARIO", help="a scenario file (TOML)")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"in place of those the file names; again for several: {', '.join(POLICIES)}",
    )
    parser.add_argument("--eviction", choices=EVICTION_NAMES, help="the cache's rule in place of the policies' own")
    parser.add_argument("--seed", type=int, help="in place of the file's")
    parser.add_argument("--out", type=Path, metavar="DIR", help="records, report.txt, report.html, report.png go there")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")
    return parser


def _line(error: PentimentoError) -> str:
    if not error.violations:
        return error.message
    return "; ".join(f"{violation.field}: {violation.description}" for violation in error.violations)


if __name__ == "__main__":
    sys.exit(main())
