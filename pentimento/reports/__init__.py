"""Reports: the same figures from a live, an emulated and a simulated run, so that they lie side by side.

records: what became of each request  →  make_report  →  as_text | as_json | as_html | save_png
"""

from pentimento.reports.document import as_json
from pentimento.reports.page import as_html
from pentimento.reports.png import check_png, save_panels, save_png
from pentimento.reports.record import Outcome, RequestRecord, StageSpan, StartKind
from pentimento.reports.records import Run, load_run, save_run
from pentimento.reports.report import Report, make_report
from pentimento.reports.svg import sheet_svg
from pentimento.reports.text import as_text

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
