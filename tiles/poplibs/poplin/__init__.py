"""poplin: contractions and convolutions."""

from tiles.poplibs.poplin.contraction import dot_general, matmul
from tiles.poplibs.poplin.conv import Convolution, conv_codelet
from tiles.poplibs.poplin.conv_cycles import CONV_METHODS
from tiles.poplibs.poplin.convolution import ConvAxes, convolution
from tiles.poplibs.poplin.factor import Cholesky, Lu, Qr, TriangularSolve, cholesky, lu, qr, triangular_solve
from tiles.poplibs.poplin.matmul import MatMul, matmul_codelet
from tiles.poplibs.poplin.matmul_cycles import METHODS
from tiles.poplibs.poplin.partials import ConvPartialReduce, add_partials
from tiles.poplibs.poplin.spread import SpreadConvolution
from tiles.poplibs.poplin.widening import choose_widening, place_contraction

__all__ = [
    "CONV_METHODS",
    "METHODS",
    "Cholesky",
    "ConvAxes",
    "ConvPartialReduce",
    "Convolution",
    "Lu",
    "MatMul",
    "Qr",
    "SpreadConvolution",
    "TriangularSolve",
    "add_partials",
    "cholesky",
    "choose_widening",
    "conv_codelet",
    "convolution",
    "dot_general",
    "lu",
    "matmul",
    "matmul_codelet",
    "place_contraction",
    "qr",
    "triangular_solve",
]
