"""The independent checker: prove from an executable's plain data that it moves and keeps every byte rightly.

Nothing here is shared with the allocator, the compiler or ``tiles.plan``: slices, exchange, lifetimes and layouts
are enumerated anew (``proof_tables``), so an error there cannot hide itself here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles.compiler.executable import Executable
from tiles.compiler.proof_codelets import prove_codelets, prove_overheads
from tiles.compiler.proof_flow import Flow, prove_flow
from tiles.compiler.proof_memory import prove_addresses, prove_lifetimes, prove_no_overlap, prove_storage
from tiles.compiler.proof_movement import Elements, prove_elements
from tiles.compiler.proof_replicas import prove_replicas
from tiles.compiler.steps import ExecuteStep
from tiles.compiler.wellformed_steps import check_structure

LIMIT = 1 << 20
"""Positions of one operand up to which it is enumerated element by element."""


@dataclass(frozen=True)
class Certificate:
    """What was proved of one executable.

    Args:
      name: the executable.
      target: its target.
      num_tiles: tiles of the target.
      fits: whether every buffer lies inside the target's memory; if not, that one claim is missing.
      variables: variables whose storage has exactly their bytes and tiles.
      buffers: buffers placed.
      pairs: pairs of buffers with common addresses whose lifetimes or tiles were found disjoint.
      placed_bytes: bytes of all buffers on all tiles.
      overhead_bytes: bytes of vertex state, code and stacks found necessary, and present.
      executes: compute sets.
      visits: steps walked, loops included.
      reads: reads found to see what was written for them.
      writes: writes found inside their storage's lifetime.
      codelets: codelets whose results have the shape and dtype of a cell's part.
      layouts, views, in_place, received, results, copies, stream_copies: see ``Elements``.
      by_element: operands, results and copies enumerated element by element.
      by_axis: those too large for it, proved axis by axis.
      positions: elements enumerated one by one.
      moved_bytes: bytes delivered across tiles when every step runs once.
      exchange_code_bytes: bytes of exchange code that no exchange program does without, found present; a lower bound.
      replicas: replicas of the program.
      exchanges: between replicas, in which whole groups take part, in the same order on all members.
      link_bytes: bytes that replicas send each other, and receive, when every step runs once.
      composites: composites of the program.
      composites_run: those whose codelet was found to give what the body gives, on drawn words in the ring.
    """

    name: str
    target: str
    num_tiles: int
    fits: bool
    variables: int
    buffers: int
    pairs: int
    placed_bytes: int
    overhead_bytes: int
    executes: int
    copies: int
    stream_copies: int
    visits: int
    reads: int
    writes: int
    layouts: int
    views: int
    in_place: int
    received: int
    results: int
    codelets: int
    by_element: int
    by_axis: int
    positions: int
    moved_bytes: int
    exchange_code_bytes: int
    replicas: int = 1
    exchanges: int = 0
    link_bytes: int = 0
    composites: int = 0
    composites_run: int = 0

    @property
    def not_proved(self) -> tuple[str, ...]:
        """What this certificate does not say."""
        not_run = self.composites - self.composites_run
        left_out = (f"that {not_run:,} composites compute what their codelets do",) if not_run else ()
        memory = () if self.fits else ("that the program fits: some buffers lie outside the target's memory",)
        return (
            *memory,
            "the size of the exchange code beyond that lower bound, which is estimated",
            "what codelets compute, beyond shapes and dtypes",
            *left_out,
        )

    def __str__(self) -> str:
        """Return the proofs, one per line."""
        inside = "inside memory" if self.fits else "NOT inside memory: the program does not fit"
        lines = [
            f"certificate of {self.name} for {self.target} ({self.num_tiles:,} tiles)",
            f"  addresses  {self.buffers:,} buffers ({self.placed_bytes:,} B on all tiles) lie {inside}, code where it can run",
            f"  overlap    {self.pairs:,} pairs of buffers with common addresses have disjoint lifetimes or tiles",
            f"  storage    {self.variables:,} variables have exactly their bytes and tiles; {self.overhead_bytes:,} B of state, code, stacks",
            f"  data flow  {self.reads:,} reads and {self.writes:,} writes on {self.visits:,} visits of steps see what was put there for them",
            f"  layouts    {self.layouts:,} layouts put every element on one tile, {self.views:,} views name the elements they say",
            f"  operands   {self.in_place:,} read in place hold what is read, {self.received:,} received come from one source each",
            f"  results    {self.results:,} results of {self.executes:,} compute sets and {self.copies:,} copies are covered exactly once",
            f"  codelets   {self.codelets:,} give parts of the right shape and dtype",
            f"  exchange   {self.moved_bytes:,} B received equal the bytes sent, when every step runs once",
            f"  code       {self.exchange_code_bytes:,} B of exchange code are the least that any exchange program needs, and have room",
            f"  how        {self.by_element:,} proofs element by element ({self.positions:,} elements), {self.by_axis:,} axis by axis",
        ]
        if self.composites_run:
            lines.append(
                f"  composites {self.composites_run:,} codelets give what their bodies give, in the ring on drawn words"
            )
        if self.exchanges:
            lines.append(
                f"  replicas   {self.exchanges:,} exchanges between {self.replicas:,} replicas: whole groups meet, each"
                f" element comes from one of them, {self.link_bytes:,} B received equal the bytes sent"
            )
        if self.stream_copies:
            lines.append(
                f"  streams    {self.stream_copies:,} copies put every element of an item on one tile"
            )
        return "\n".join([*lines, *(f"  not proved {gap}" for gap in self.not_proved)])


def certify(executable: Executable, limit: int = LIMIT) -> Certificate:
    """Prove that an executable is consistent; return what was proved.

    Args:
      executable: what to prove.
      limit: positions of one operand up to which it is enumerated element by element; above, axis by axis.

    Raises:
      InvalidExecutable: the first violation: which buffer, step, tile or address, expected and got.
    """
    check_structure(executable)
    placed = prove_addresses(executable)
    pairs = prove_no_overlap(executable)
    prove_storage(executable)
    prove_lifetimes(executable)
    flow: Flow = prove_flow(executable)
    elements: Elements = prove_elements(executable, limit)
    codelets = prove_codelets(executable)
    overhead = prove_overheads(executable)
    exchanges = prove_replicas(executable)
    return Certificate(
        name=executable.name,
        target=executable.target.name,
        num_tiles=executable.target.num_tiles,
        fits=executable.fits,
        variables=len(executable.variables),
        buffers=len(executable.buffers),
        pairs=pairs,
        placed_bytes=placed,
        overhead_bytes=overhead,
        executes=sum(isinstance(step, ExecuteStep) for step in executable.steps),
        visits=flow.visits,
        reads=flow.reads,
        writes=flow.writes,
        codelets=codelets,
        replicas=executable.replicas.count,
        exchanges=exchanges.exchanges,
        link_bytes=exchanges.link_bytes,
        composites=len(executable.composites),
        **vars(elements),
    )
