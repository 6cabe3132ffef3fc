"""Workloads: requests and their times, as values for the simulator, an emulated fleet and a live suite.

`builders` and `production` make them, `files` keeps them, `readers` reads public logs, `times` has the processes.
"""

from lab.workloads.arrival import Arrival, Workload
from lab.workloads.builders import fluctuating, from_trace, poisson
from lab.workloads.content import Content, SloClass
from lab.workloads.files import load_workload, save_workload
from lab.workloads.production import from_production_log, production_mix
from lab.workloads.times import Segment

__all__ = [
    "Arrival",
    "Content",
    "Segment",
    "SloClass",
    "Workload",
    "fluctuating",
    "from_production_log",
    "from_trace",
    "load_workload",
    "poisson",
    "production_mix",
    "save_workload",
]
