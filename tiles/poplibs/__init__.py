"""PopLibs: codelets with their cycles, and the primitives that place them.

``popops`` has elementwise expressions and reductions, ``poplin`` contractions, ``poputil`` placing and
copies, ``popsolver`` the search over plans; ``forms`` builds the forms they share.
"""

# popops comes first: poputil.place needs its reduction codelet, and its builders need poputil.place.
from tiles.poplibs import popops  # isort: skip
from tiles.poplibs import forms, poplin, popsolver, poputil

__all__ = ["forms", "poplin", "popops", "popsolver", "poputil"]
