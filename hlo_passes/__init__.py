"""HLO on its own: an immutable IR (``ir``), one class per operation (``ops``), transformations (``passes``).

This package knows nothing of tiles, targets or programs.
"""
