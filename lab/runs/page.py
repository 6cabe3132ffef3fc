"""Reports as one HTML page that needs nothing else: tables and drawings."""

import json
from collections.abc import Sequence

from lab.runs.markup import escaped
from lab.runs.panels import bars, panels
from lab.runs.report import Report, told_apart
from lab.runs.svg import bars_svg, panel_svg
from lab.runs.text import Row, class_rows, stage_rows, summary_rows

STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em }
body { color: #222; background: #fff } table { border-collapse: collapse; margin: 1em 0 }
th, td { text-align: left; padding: .2em 1em .2em 0; white-space: pre }
th { border-bottom: 1px solid #999 } tr:nth-child(even) td { background: #f6f6f6 }
svg { max-width: 100%; height: auto; margin: .5em } svg text { font: 12px system-ui, sans-serif; fill: #222 }
svg .title { font-weight: 600; font-size: 13px } svg .tick { font-size: 11px } svg .grid { stroke: #ddd }
pre { white-space: pre-wrap; background: #f6f6f6; padding: 1em }
"""


def as_html(reports: Sequence[Report], title: str = "Pentimento: a run in figures") -> str:
    reports = told_apart(reports)
    tables = [_table(rows) for rows in (summary_rows(reports), class_rows(reports), stage_rows(reports)) if rows]
    drawn = [panel_svg(panel) for panel in panels(reports)]
    if waterfalls := bars(reports):
        drawn.append(bars_svg(waterfalls))
    provenance = {report.name: dict(report.provenance) for report in reports}
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f"<title>{escaped(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escaped(title)}</h1>",
            *tables,
            *drawn,
            f"<h2>Provenance</h2><pre>{escaped(json.dumps(provenance, indent=1, ensure_ascii=False))}</pre>",
            "</body></html>\n",
        ]
    )


def _table(rows: Sequence[Row]) -> str:
    head, *body = rows
    lines = ["".join(f"<td>{escaped(cell)}</td>" for cell in row) for row in body]
    titles = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in head)
    return f"<table><tr>{titles}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
