"""popsolver: exact minimisation over integer variables, which builders plan with.

As PopLibs' library of that name: variables with finite domains, sums, products, rounded-up quotients and functions of
them, constraints, and the values that minimise an objective. Searches over plans of operations are ``tiles.plan``'s.
"""

from tiles.solver import Model, Solution, Variable

__all__ = ["Model", "Solution", "Variable"]
