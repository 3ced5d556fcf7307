"""Exact minimisation over integer variables with finite domains: propagation, then branch and bound.

What PopLibs' planners use popsolver for; builders find it as ``tiles.poplibs.popsolver``.
"""

from tiles.solver.model import Model, Solution, Variable

__all__ = ["Model", "Solution", "Variable"]
