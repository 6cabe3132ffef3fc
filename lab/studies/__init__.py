"""Study prompt logs: the reuse that a cache would find in them, before there is one.

read_prompt_log, its vectors  →  make_study  →  study_as_text | study_as_json | study_panels
"""

from lab.studies.document import study_as_json, study_as_text
from lab.studies.panels import study_panels
from lab.studies.prompt_log import PromptLog, read_prompt_log, with_production_times
from lab.studies.reuse import NIRVANA_SAVINGS, SavingsRule, parse_table
from lab.studies.study import StudySettings, TraceStudy, make_study

__all__ = [
    "NIRVANA_SAVINGS",
    "PromptLog",
    "SavingsRule",
    "StudySettings",
    "TraceStudy",
    "make_study",
    "parse_table",
    "read_prompt_log",
    "study_as_json",
    "study_as_text",
    "study_panels",
    "with_production_times",
]
