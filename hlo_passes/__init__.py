"""HLO on its own: an immutable IR (``ir``), one class per operation (``ops``), transformations (``passes``).

This package knows nothing of tiles, targets or programs. Importing it registers every operation, so that a
module's text can be parsed whichever part a caller imports.
"""

from hlo_passes import ops as ops
