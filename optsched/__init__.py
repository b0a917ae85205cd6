"""How far is this LLM-serving scheduler from optimal?

The package computes the optimum of a scheduling instance, or a proved bound on it, runs the heuristic policies of
the literature on the same cost model, and prints the gap.
"""

from importlib.metadata import version as _version

from optsched.calibrate.library import cost_model
from optsched.check import check_result, check_schedule
from optsched.library import load_instance, load_result, load_results, load_suite, save_instance, save_result
from optsched.methods.bound import all_bounds, bound, bound_names
from optsched.methods.export import export_model
from optsched.methods.plan import method_names
from optsched.methods.simulate import policy_names, simulate
from optsched.methods.solve import solve
from optsched.model.cluster import CacheMode, CacheRules, Link, Role, ViewAge
from optsched.model.cost import CostModel
from optsched.model.domain import replace
from optsched.model.errors import InfeasibleInstanceError, InputError
from optsched.model.instance import Instance, Limits, Machine, MachineGroup, Request, Rules
from optsched.model.objectives import Objective, gap
from optsched.model.prefixes import PrefixNode, PrefixTree
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Results, Status
from optsched.model.schedule import Assignment, Batch, Move, Schedule
from optsched.model.timeline import Moment, timeline
from optsched.simulator.replica import NoBatchError, Policy
from optsched.solvers.formulation import Formulation
from optsched.study.compare import Comparison, compare

__version__ = _version("optsched")

__all__ = [
    "Assignment",
    "Badge",
    "Batch",
    "CacheMode",
    "CacheRules",
    "Comparison",
    "CostModel",
    "Formulation",
    "InfeasibleInstanceError",
    "InputError",
    "Instance",
    "Limits",
    "Link",
    "Machine",
    "MachineGroup",
    "Moment",
    "Move",
    "NoBatchError",
    "Objective",
    "Policy",
    "PrefixNode",
    "PrefixTree",
    "Request",
    "Restrictions",
    "Result",
    "Results",
    "Role",
    "Rules",
    "Schedule",
    "Status",
    "ViewAge",
    "all_bounds",
    "bound",
    "bound_names",
    "check_result",
    "check_schedule",
    "compare",
    "cost_model",
    "export_model",
    "gap",
    "load_instance",
    "load_result",
    "load_results",
    "load_suite",
    "method_names",
    "policy_names",
    "replace",
    "save_instance",
    "save_result",
    "simulate",
    "solve",
    "timeline",
]
