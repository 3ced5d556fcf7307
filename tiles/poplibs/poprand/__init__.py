"""poprand: random bits from counters, to the bit as XLA defines them."""

from tiles.poplibs.poprand.bits import RandomBits, random_bits

__all__ = ["RandomBits", "random_bits"]
