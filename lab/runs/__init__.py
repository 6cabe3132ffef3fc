"""Reports: the same figures from a live, an emulated and a simulated run, so that they lie side by side.

records: what became of each request  →  make_report  →  as_text | as_json | as_html | save_png
"""

from lab.runs.document import as_json
from lab.runs.page import as_html
from lab.runs.png import check_png, save_panels, save_png
from lab.runs.record import Outcome, RequestRecord, StageSpan, StartKind
from lab.runs.records import Run, load_run, save_run
from lab.runs.report import Report, make_report
from lab.runs.svg import sheet_svg
from lab.runs.text import as_text

__all__ = [
    "Outcome",
    "Report",
    "RequestRecord",
    "Run",
    "StageSpan",
    "StartKind",
    "as_html",
    "as_json",
    "as_text",
    "check_png",
    "load_run",
    "make_report",
    "save_panels",
    "save_png",
    "save_run",
    "sheet_svg",
]
