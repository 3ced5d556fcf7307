"""popnn: pooling and its gradient, functions of rows such as softmax and norms."""

from tiles.poplibs.popnn.pool import Pool, pool_codelet
from tiles.poplibs.popnn.pooling import pool, select_and_scatter
from tiles.poplibs.popnn.rows import RowFunction
from tiles.poplibs.popnn.select_scatter import SelectAndScatter

__all__ = ["Pool", "RowFunction", "SelectAndScatter", "pool", "pool_codelet", "select_and_scatter"]
