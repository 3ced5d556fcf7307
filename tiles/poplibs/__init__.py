"""PopLibs: codelets with their cycles, and the primitives that place them.

``popops`` has elementwise expressions and reductions, ``poplin`` contractions, ``poputil`` placing and
copies, ``popnn`` pooling and row functions, ``poprand`` random bits, ``popsolver`` the search over plans;
``forms`` builds the forms they share. Importing this package registers every codelet of it, which executables name.
"""

# popops comes first: poputil.place needs its reduction codelet, and its builders need poputil.place.
from tiles.poplibs import popops  # isort: skip
from tiles.poplibs import forms, poplin, popnn, poprand, popsolver, poputil

__all__ = ["forms", "poplin", "popnn", "popops", "poprand", "popsolver", "poputil"]
