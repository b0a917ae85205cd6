"""How far is this LLM-serving scheduler from optimal?

The package computes the optimum of a scheduling instance, or a proved bound on it, runs the heuristic policies of
the literature on the same cost model, and prints the gap.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
