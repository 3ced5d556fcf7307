"""Scopes as they are seen from the entry: in a computation that is called they go on from its calls'."""

from __future__ import annotations

import dataclasses
import functools

from hlo_passes.ir import Computation, Location, Module, agreed, relocated
from hlo_passes.passes.structure import callees_first


def with_whole_scopes(module: Module) -> Module:
    """Return the module with whole scopes everywhere; what is called more than once has what its calls agree on.

    This is for what comes after the HLO passes: inlining what this returned would name a call's scope twice.
    """
    done: dict[str, Computation] = {}
    calls: dict[str, list[Location]] = {}
    for computation in reversed(callees_first(module)):
        outer = calls.get(computation.name)
        if outer is not None:
            computation = relocated(computation, functools.partial(Location.within, call=agreed(outer)))
        done[computation.name] = computation
        for instruction in computation.walk():
            for callee in instruction.op.callees:
                calls.setdefault(callee, []).append(instruction.location)
    computations = tuple(done.get(c.name, c) for c in module.computations)
    return dataclasses.replace(module, computations=computations)
