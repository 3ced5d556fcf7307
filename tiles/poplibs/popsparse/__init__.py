"""Products of a block-sparse matrix with a dense one: a pattern cut into parts, the codelet, and the builder.

Source: graphcore/poplibs lib/popsparse (StaticMatMul.cpp, FullyConnected.cpp), and Li et al., "PopSparse: Accelerated
block sparse matrix multiplication on IPU", arXiv:2303.16999.
"""

from tiles.poplibs.popsparse.matmul import SparseDenseMatMul, sparse_dense_matmul
from tiles.poplibs.popsparse.pattern import BLOCKS, Pattern, cut, pattern_of, split_of

__all__ = [
    "BLOCKS",
    "Pattern",
    "SparseDenseMatMul",
    "cut",
    "pattern_of",
    "sparse_dense_matmul",
    "split_of",
]
