"""The shipped suites by name, with their generators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from optsched.model.documents import Suite
from optsched.traces.chunked import chunked_small
from optsched.traces.clusters import distserve_figure_12, preble_azure_mix
from optsched.traces.infermax import figure_15, memory_sweep, mixes, uniform_grid
from optsched.traces.ladder import ladder, ladder_b
from optsched.traces.routing import pd_small, prefix_preble, routing_small
from optsched.traces.session_standin import CODING, MOONCAKE, session_suite
from optsched.traces.standin import stand_in_suite
from optsched.traces.worst_known import worst_known


@dataclass(frozen=True)
class SuiteSource:
    """Generator of a shipped suite.

    Parameters
    ----------
    profile
        The cost profile that its instances are on.
    make
        Makes the suite.
    """

    profile: str
    make: Callable[[str], Suite]


SUITES = MappingProxyType(
    {
        "infermax-fig15": SuiteSource("a100-llama2-7b-linear", figure_15),
        "infermax-fig15-chunked": SuiteSource("a100-llama2-7b-linear", partial(figure_15, chunked=True)),
        "infermax-b32": SuiteSource("a100-llama2-7b-nocall", partial(uniform_grid, 32)),
        "infermax-b1024": SuiteSource("a100-llama2-7b-nocall", partial(uniform_grid, 1024)),
        "infermax-m": SuiteSource("a100-llama2-7b-nocall", memory_sweep),
        "infermax-mix-b1024": SuiteSource("a100-llama2-7b-nocall", partial(mixes, 1024)),
        "azure-conv": SuiteSource("a100-llama2-7b-nocall", partial(stand_in_suite, "azure-conv")),
        "azure-code": SuiteSource("a100-llama2-7b-nocall", partial(stand_in_suite, "azure-code")),
        "ladder": SuiteSource("a100-llama2-7b-linear", ladder),
        "ladder-b": SuiteSource("a100-llama2-7b-linear", ladder_b),
        "preble-azure-mix": SuiteSource("a100-llama2-7b-nocall", preble_azure_mix),
        "econoserve-fig12": SuiteSource("a100-llama2-7b-nocall", distserve_figure_12),
        "routing-small": SuiteSource("a100-llama2-7b-linear", routing_small),
        "prefix-preble": SuiteSource("a100-llama2-7b-nocall", prefix_preble),
        "prefix-mooncake": SuiteSource("a100-llama2-7b-nocall", partial(session_suite, "prefix-mooncake", MOONCAKE)),
        "prefix-coding": SuiteSource("a100-llama2-7b-nocall", partial(session_suite, "prefix-coding", CODING)),
        "pd-small": SuiteSource("a100-llama2-7b-nocall", pd_small),
        "chunked-small": SuiteSource("a100-llama2-7b-linear", chunked_small),
        "worst-known": SuiteSource("a100-llama2-7b-nocall", worst_known),
    }
)
"""Suite name → its generator."""
