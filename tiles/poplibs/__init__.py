"""PopLibs: codelets with their cycles, and the primitives that record them.

``popops`` has elementwise expressions and reductions, ``poplin`` contractions, ``poputil`` recording and
copies, ``popnn`` pooling and row functions, ``poprand`` random bits, ``popsolver`` exact minimisation over
integers, ``popsparse`` block-sparse products, ``gcl`` collectives between replicas; ``forms`` builds the forms they share.
Importing this package registers every codelet of it, which executables name.
"""

from tiles.poplibs import forms, gcl, poplin, popnn, popops, poprand, popsolver, popsparse, poputil

__all__ = ["forms", "gcl", "poplin", "popnn", "popops", "poprand", "popsolver", "popsparse", "poputil"]
