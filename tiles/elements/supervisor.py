"""What the supervisor does around the workers of a vertex: it starts them and waits, and loads weights before."""

from __future__ import annotations

from dataclasses import dataclass

from tiles.elements.isa import InstructionSet

# Load the vertex's address and its code's, start the workers, wait for them. A start and a wait wait for the
# supervisor's own pipeline.
_LAUNCH = ("setzi", "setzi", "or")
_START = ("runall", "sync")
_NEXT_PANEL = ("add", "st32", "add", "st32", "add")
"""The vertex state's pointers to inputs and to results, and the weights', go on to those of the next panel."""


@dataclass(frozen=True)
class Supervisor:
    """What the supervisor spends on one vertex: instructions of one cycle, and those that wait for its pipeline.

    Attributes:
      single, dependent: mnemonics.
      weights: of a product on the multiply units the instruction whose weights it loads, from the address in the field
        "weights" of the vertex state; or "".
    """

    single: tuple[str, ...] = _LAUNCH
    dependent: tuple[str, ...] = _START
    weights: str = ""

    def cycles(self, isa: InstructionSet) -> int:
        """Return tile cycles; the workers' slots come on top."""
        return len(self.single) + len(self.dependent) * isa["supervisor_dependent_cycles"]

    def code_bytes(self, isa: InstructionSet) -> int:
        """Return bytes of the supervisor's instructions."""
        return isa["instruction_bytes"] * (len(self.single) + len(self.dependent))


LAUNCH = Supervisor()


def loads_of(panel_bytes: int, bits: int) -> tuple[str, ...]:
    """Return the instructions that load a panel of weights, 64 or 128 bits each."""
    return (f"ld{bits}putcs",) * (8 * panel_bytes // bits)


def panel_supervisor(weights: str, panel_bytes: int, bits: int = 64) -> Supervisor:
    """Return what the supervisor does for a panel of weights: it loads them while all workers rest, and starts these.

    Args:
      weights: the instruction that the weights are for.
      panel_bytes: of the panel.
      bits: of a load: 64, or 128 from interleaved memory.
    """
    loads = loads_of(panel_bytes, bits)
    return Supervisor((*_NEXT_PANEL, *_LAUNCH, *loads), ("put", *_START, "brnzdec"), weights)
