"""The simulator: the live cache in virtual time, policies side by side, and the floors below them."""

from graphcache.simulate.compare import Candidate, Progress, candidates, check_bytes, simulate
from graphcache.simulate.emit import emit
from graphcache.simulate.options import (
    format_budget,
    load_costs,
    load_requests,
    load_steps,
    parse_budget,
    parse_budgets,
    parse_ladder,
)
from graphcache.simulate.plot import plot
from graphcache.simulate.report import Report, describe, figures, write_json, write_text
from graphcache.simulate.run import Change, Run, drive
from graphcache.simulate.scenario import Scenario
from graphcache.trace.replay import Limits

__all__ = [
    "Candidate",
    "Change",
    "Limits",
    "Progress",
    "Report",
    "Run",
    "Scenario",
    "candidates",
    "check_bytes",
    "describe",
    "drive",
    "emit",
    "figures",
    "format_budget",
    "load_costs",
    "load_requests",
    "load_steps",
    "parse_budget",
    "parse_budgets",
    "parse_ladder",
    "plot",
    "simulate",
    "write_json",
    "write_text",
]
