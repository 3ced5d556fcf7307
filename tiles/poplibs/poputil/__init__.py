"""poputil: placing operations, and copies and reshapes of whole tensors."""

from tiles.poplibs.poputil.copies import concatenate, copy, map_linearly, reshape
from tiles.poplibs.poputil.place import combine, place, settle

__all__ = ["combine", "concatenate", "copy", "map_linearly", "place", "reshape", "settle"]
