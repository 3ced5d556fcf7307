"""PopLibs: codelets with their cycles, and the primitives that place them.

``popops`` has elementwise expressions and reductions, ``poplin`` contractions, ``poputil`` placing and
copies, ``poprand`` random bits, ``popsolver`` the search over plans; ``forms`` builds the forms they share.
"""

# popops comes first: poputil.place needs its reduction codelet, and its builders need poputil.place.
from tiles.poplibs import popops  # isort: skip
from tiles.poplibs import forms, poplin, poprand, popsolver, poputil

__all__ = ["forms", "poplin", "popops", "poprand", "popsolver", "poputil"]
