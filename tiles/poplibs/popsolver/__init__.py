"""popsolver: the search over plans.

PopLibs solves its planners' integer variables with a constraint solver. Here a plan's variables are the
extents of a cell, all candidates are scored at once by numpy, and that search serves every operation; this
package only gives it the name under which users of PopLibs look for it.
"""

from tiles.plan import Operand, Priced, follow, price, search

__all__ = ["Operand", "Priced", "follow", "price", "search"]
