"""Proof that no replica waits for one that does not take part, and that what is sent between replicas arrives.

All replicas run one program, so they meet in an exchange if they take the same turns on the way to it. A variable may
differ along an axis if it is an input given so, holds a replica's place, arrives from another replica, or is computed
of such or where such decides; what a collective gives to all members alike does not differ along its axes, nor does what
the program says is equal on them, which a run compares. What decides
a loop or branch around an exchange along some axes must not differ along any of them. Flows are counted once for a
permutation: the cost is that of the program, and of one array as long as there are replicas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tiles.cached import cached_property
from tiles.compiler.control import Composite, Decided, Part
from tiles.compiler.executable import Executable
from tiles.compiler.steps import BetweenStep, IndexStep, VertexGroup
from tiles.compiler.wellformed import refuse, root_of, where
from tiles.graph import Collective, Permutation, Replicas
from tiles.numerics.dtypes import itemsize

Axes = frozenset[str]
NONE: Axes = frozenset()


@dataclass
class Exchanges:
    """What was proved.

    Args:
      exchanges: between replicas, in which every member of a group takes part.
      link_bytes: that one run of each of them sends, and as many that it receives, on all replicas; of stages, each.
    """

    exchanges: int = 0
    link_bytes: int = 0


def prove_replicas(executable: Executable) -> Exchanges:
    """Raise InvalidExecutable at the first exchange in which not all members of a group may take part.

    Returns:
      how many exchanges there are, and their bytes.
    """
    if not executable.replicas.axes:
        return Exchanges()
    return _Proof(executable).prove()


class _Proof:
    """Which variables may differ along which axes; without an order of steps, until nothing is added."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.differs: dict[str, Axes] = {}
        for name, axes in zip(executable.inputs, executable.differs_along, strict=True):
            self._add((name,), frozenset(axes))

    def prove(self) -> Exchanges:
        while True:
            before = dict(self.differs)
            self._walk(self.executable.program, NONE)
            if before == self.differs:
                break
        found = Exchanges()
        self._meet(self.executable.program, (), found, set())
        return found

    @cached_property
    def _roots(self) -> dict[str, str]:
        return {name: root_of(self.executable, name) for name in self.executable.variables}

    def _shown(self, axes: Axes) -> str:
        return self.executable.replicas.shown(axes)

    def _of(self, names: tuple[str, ...]) -> Axes:
        return NONE.union(*(self.differs.get(self._roots[name], NONE) for name in names))

    def _add(self, names: tuple[str, ...], axes: Axes) -> None:
        for name in names if axes else ():
            root = self._roots[name]
            self.differs[root] = self.differs.get(root, NONE) | axes

    def _walk(self, part: Part, around: Axes) -> None:
        """Add what differs after a part that runs where ``around`` decides differently."""
        if isinstance(part, int):
            step = self.executable.steps[part]
            own = frozenset(step.axes) if isinstance(step, (BetweenStep, IndexStep)) else NONE
            for read, written in step.flows:
                self._add(written, self._of(read) | around | own)
            return
        if isinstance(part, Composite):
            whole = self.executable.composites[part.number]
            axes = self._of(tuple(o.variable for o in whole.operands)) | around
            if isinstance(whole.codelet, Collective):
                own = frozenset(whole.codelet.axes)
                axes = axes - own | around if whole.codelet.is_alike else axes | own
            self._add(whole.results, axes)
            return
        if isinstance(part, Decided):
            around = around | self._of((part.decided_by,))
        for inner in part.parts:
            self._walk(inner, around)

    def _meet(self, part: Part, deciders: tuple[Decided, ...], found: Exchanges, counted: set[int]) -> None:
        """Refuse an exchange that a decision around it may keep some members from."""
        if isinstance(part, int):
            step = self.executable.steps[part]
            if not isinstance(step, BetweenStep):
                return
            for decider in deciders:
                apart = self._of((decider.decided_by,)) & frozenset(step.axes)
                if apart:
                    v = self.executable.variables[decider.decided_by]
                    raise refuse(
                        f"{where(part, step)}: a replica may wait for one that does not take part: {decider.kind} on "
                        f"{v.name}, which may differ along {self._shown(apart)}, decides whether it runs",
                        step.location or v.location,
                    )
            apart = self._of((step.stage,)) & frozenset(step.axes) if step.stage else NONE
            if apart:
                raise refuse(
                    f"{where(part, step)}: its stage {step.stage} may differ along {self._shown(apart)}",
                    step.location,
                )
            if part not in counted:
                counted.add(part)
                found.exchanges += 1
                found.link_bytes += self._bytes(part, step)
            return
        if isinstance(part, Decided):
            deciders = (*deciders, part)
        if isinstance(part, Composite):
            self._compared(self.executable.composites[part.number], deciders)
        for inner in part.parts:
            self._meet(inner, deciders, found, counted)

    def _compared(self, whole: VertexGroup, deciders: tuple[Decided, ...]) -> None:
        """Refuse to call equal on all members what some of them may not compute."""
        if not isinstance(whole.codelet, Collective) or not whole.codelet.expects_equal:
            return
        for decider in deciders:
            apart = self._of((decider.decided_by,)) & frozenset(whole.codelet.axes)
            if apart:
                v = self.executable.variables[decider.decided_by]
                raise refuse(
                    f"{whole.name} is called equal on all replicas, of which some may not compute it: {decider.kind} on "
                    f"{v.name}, which may differ along {self._shown(apart)}, decides whether it runs",
                    whole.location or v.location,
                )

    def _bytes(self, number: int, step: BetweenStep) -> int:
        """Return the bytes that cross in a step, after counting that each replica receives from one at most."""
        executable, replicas = self.executable, self.executable.replicas
        v, crossing = executable.variables[step.source], 0
        for permutation in step.permutations:
            sent = _sent(replicas, tuple(step.axes), permutation)
            if sent is None:
                raise refuse(f"{where(number, step)} sends twice to one replica", step.location)
            crossing += sent
        return crossing * math.prod(v.shape) * itemsize(v.dtype) // len(step.exchanges[0])


@lru_cache(maxsize=1024)
def _sent(replicas: Replicas, axes: tuple[str, ...], permutation: Permutation) -> int | None:
    """Return how many replicas send to another one; None where two send to one."""
    there = replicas.destinations(axes, permutation)
    arrives = np.bincount(there[there >= 0], minlength=replicas.count)
    if arrives.size > replicas.count or arrives.max(initial=0) > 1:
        return None
    return int(((there >= 0) & (there != np.arange(replicas.count))).sum())
