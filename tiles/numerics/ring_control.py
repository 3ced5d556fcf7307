"""The ring meaning of JAX's control flow: calls are seen through, bodies and branches interpreted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax
from jax.extend import core

from tiles._jax_compat import Atom, Datum, Equation, Jaxpr, jit, scan_counts, set_xla_metadata, switch
from tiles.errors import Unsupported
from tiles.numerics import ring_words
from tiles.numerics.ring_rules import Evaluate, rule

_CALLS = """
jit pjit closed_call core_call call remat remat2 checkpoint composite
custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr
""".split()


NAMES = frozenset((*_CALLS, "cond", "scan", "while"))
"""Primitives that hold other jaxprs: interpreted always, since a float may hide inside."""


def callee(eqn: Equation) -> tuple[Jaxpr, Sequence[Datum]]:
    """Return the body of a call-like equation: an open jaxpr and its constants."""
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    body = next(eqn.params[name] for name in names if name in eqn.params)
    return (body.jaxpr, body.consts) if hasattr(body, "consts") else (body, ())


@rule(*_CALLS)
def _call(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """See through a call; what XLA is told of it, as to leave it a computation of its own, it is told of the ring's."""
    jaxpr, consts = callee(eqn)
    words = [ring_words.to_ring(c) for c in consts]
    if not (said := eqn.ctx.xla_metadata):
        return evaluate(jaxpr, words, ins)

    def evaluate_own(*own: Datum) -> Sequence[Datum]:
        return evaluate(jaxpr, words, own)

    with set_xla_metadata(**said):
        return jit(evaluate_own)(*ins)


@rule("cond")
def _cond(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Take the branch that the index names; an index that depends on floats is the ring's own."""
    index, *operands = ins
    return switch(index, [_closed(b, evaluate) for b in eqn.params["branches"]], *operands)


@rule("scan")
def _scan(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    params = eqn.params
    num_consts, num_carry = scan_counts(params)
    consts, carry, xs = (
        ins[:num_consts],
        ins[num_consts : num_consts + num_carry],
        ins[num_consts + num_carry :],
    )
    body = _closed(params["jaxpr"], evaluate)

    def step(state: list[Datum], x: list[Datum]) -> tuple[list[Datum], list[Datum]]:
        results = body(*consts, *state, *x)
        return results[:num_carry], results[num_carry:]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, ys = lax.scan(step, carry, xs, **options)
    return [*carry, *ys]


@rule("while")
def _while(eqn: Equation, ins: list[Datum], evaluate: Evaluate) -> Sequence[Datum]:
    """Loop while the condition holds; of a batch of loops (``vmap``) while any member's does.

    Raises:
      Unsupported: the trip count depends on floats, which have no size in the ring: such a loop need not end.
    """
    params = eqn.params
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    if _trips_depend_on_floats(params["cond_jaxpr"], params["body_jaxpr"], eqn.invars, num_cond, num_body):
        raise Unsupported(
            "a loop's trip count depends on floats, which ring arithmetic cannot decide",
            try_="run the loop as a step of the program, whose decisions are replayed from the float run",
        )
    cond_consts, body_consts, state = (
        ins[:num_cond],
        ins[num_cond : num_cond + num_body],
        ins[num_cond + num_body :],
    )
    cond, body = _closed(params["cond_jaxpr"], evaluate), _closed(params["body_jaxpr"], evaluate)
    if not params["cond_jaxpr"].out_avals[0].shape:
        return lax.while_loop(
            lambda s: cond(*cond_consts, *s)[0], lambda s: body(*body_consts, *s), list(state)
        )

    def step(s: list[Datum]) -> list[Datum]:
        (goes_on,) = cond(*cond_consts, *s)
        new = body(*body_consts, *s)
        return [_chosen(goes_on, x, y) for x, y in zip(new, s, strict=True)]

    return lax.while_loop(lambda s: cond(*cond_consts, *s)[0].any(), step, list(state))


def _chosen(goes_on: Datum, new: Datum, old: Datum) -> Datum:
    """Return the new value for the members of a batch whose own loop goes on; batch dimensions lead."""
    return jnp.where(goes_on.reshape(goes_on.shape + (1,) * (new.ndim - goes_on.ndim)), new, old)


def _closed(jaxpr: Jaxpr, evaluate: Evaluate) -> Callable[..., list[Datum]]:
    """Return the ring form of a closed jaxpr as a function."""
    consts = [ring_words.to_ring(c) for c in jaxpr.consts]

    def function(*args: Datum) -> list[Datum]:
        return evaluate(jaxpr.jaxpr, consts, args)

    return function


def _trips_depend_on_floats(
    cond: Jaxpr, body: Jaxpr, operands: Sequence[Datum], num_cond: int, num_body: int
) -> bool:
    """Return whether a loop's condition can depend on a float, directly or through what its body carries."""
    tainted = [ring_words.is_float(v.aval) for v in operands]
    cond_consts, body_consts, state = (
        tainted[:num_cond],
        tainted[num_cond : num_cond + num_body],
        tainted[num_cond + num_body :],
    )
    return _taint(cond.jaxpr, [*cond_consts, *_carried_taint(body.jaxpr, body_consts, state)])[0]


def _carried_taint(body: Jaxpr, consts: Sequence[bool], state: Sequence[bool]) -> list[bool]:
    """Return which carried values of a loop can depend on a float after any number of rounds."""
    state = list(state)
    while True:
        after = _taint(body, [*consts, *state])[: len(state)]
        merged = [a or b for a, b in zip(state, after, strict=True)]
        if merged == state:
            return state
        state = merged


def _taint(jaxpr: Jaxpr, inputs: Sequence[bool]) -> list[bool]:
    """Return which results of a jaxpr are floats or can depend on one, given which inputs do."""
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(v: Atom) -> bool:
        return ring_words.is_float(v.aval) or (not isinstance(v, core.Literal) and known.get(v, False))

    for eqn in jaxpr.eqns:
        known.update(zip(eqn.outvars, _taint_of(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _taint_of(eqn: Equation, operands: Sequence[bool]) -> list[bool]:
    """Return which results of an equation can depend on a float, given which operands do."""
    name, params = eqn.primitive.name, eqn.params
    if name in _CALLS:
        return _taint(callee(eqn)[0], operands)
    if name == "cond" and not operands[0]:
        branches = [_taint(branch.jaxpr, operands[1:]) for branch in params["branches"]]
        return [any(branch) for branch in zip(*branches, strict=True)]
    if name == "while":
        num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
        start = num_cond + num_body
        carried = _carried_taint(params["body_jaxpr"].jaxpr, operands[num_cond:start], operands[start:])
        decided = _taint(params["cond_jaxpr"].jaxpr, [*operands[:num_cond], *carried])[0]
        return [decided or each for each in carried]
    if name == "scan":
        num_consts, num_carry = scan_counts(params)
        end = num_consts + num_carry
        consts, xs = operands[:num_consts], operands[end:]
        body = params["jaxpr"].jaxpr
        state = list(operands[num_consts:end])
        while True:
            after = _taint(body, [*consts, *state, *xs])
            merged = [a or b for a, b in zip(state, after, strict=False)]
            if merged == state:
                return [*state, *after[len(state) :]]
            state = merged
    return [any(operands)] * len(eqn.outvars)
