"""poplin: contractions."""

from tiles.poplibs.poplin.contraction import dot_general, matmul
from tiles.poplibs.poplin.matmul import MatMul, matmul_codelet
from tiles.poplibs.poplin.matmul_cycles import METHODS

__all__ = ["METHODS", "MatMul", "dot_general", "matmul", "matmul_codelet"]
