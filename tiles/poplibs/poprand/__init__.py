"""poprand: random bits from counters, to the bit as XLA defines them; numbers of the machine's own generator."""

from tiles.poplibs.poprand.bits import RandomBits, random_bits
from tiles.poplibs.poprand.machine import MachineRandom, machine_random

__all__ = ["MachineRandom", "RandomBits", "machine_random", "random_bits"]
