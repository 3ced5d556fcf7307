"""poputil: recording operations, and copies and reshapes of whole tensors."""

from tiles.poplibs.poputil.copies import concatenate, copy, map_linearly, reshape
from tiles.poplibs.poputil.place import place

__all__ = ["concatenate", "copy", "map_linearly", "place", "reshape"]
