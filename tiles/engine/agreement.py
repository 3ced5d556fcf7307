"""Proof that a composite's codelet computes what its body does: both are run on drawn words, in the ring and as floats.

An engine of logical arrays runs the codelet, the others the body, so an executable in which the two differ would give two
results. In the ring every misplaced word and every other function shows in nearly all of the result's bits; what
floats have beside numbers, signed zeros, infinities and NaN, shows only among floats.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable

import jax
import numpy as np

from tiles.compiler import Certificate, Executable, ExecuteStep, SyncStep, Variable, VertexGroup
from tiles.compiler import certify as certify_structure
from tiles.compiler.certify import LIMIT
from tiles.compiler.control import Composite, Part, nodes_of, steps_of
from tiles.compiler.control_flow import records_of, runs_of_parts
from tiles.compiler.wellformed import refuse, root_of
from tiles.compiler.wellformed_steps import read_by, written_by
from tiles.engine.fast import FastEngine
from tiles.engine.interface import FLOAT, RING
from tiles.engine.literal import LiteralEngine
from tiles.graph import CONSTANT, Codelet, Collective
from tiles.numerics.dtypes import is_float, is_integer, itemsize, to_jax

BYTES = 1 << 22
"""Bytes that a composite reads and writes, on all replicas together, up to which it is run."""
VISITS = 1 << 13
"""Runs of its body's steps, on all replicas together, up to which it is run; a run takes some 0.1 ms of every draw."""
MEMORY = 1 << 30
"""Bytes of emulated memory for what it reads and writes, on all replicas together, up to which it is run."""
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan)
DRAWS: dict[str, tuple[tuple[float, tuple[float, ...]], ...]] = {
    RING: ((0.0, SPECIAL),),
    FLOAT: ((0.1, SPECIAL), (1.0, SPECIAL[:2])),
}
"""By arithmetic which share of floats is drawn from which."""


def certify(executable: Executable, limit: int = LIMIT) -> Certificate:
    """Prove that an executable is consistent, composites included; return what was proved.

    Args:
      executable: what to prove.
      limit: positions of one operand up to which it is enumerated element by element; above, axis by axis.

    Raises:
      InvalidExecutable: the first violation: which buffer, step, tile or address, expected and got.
    """
    certificate = certify_structure(executable, limit)
    return dataclasses.replace(certificate, composites_run=prove_composites(executable))


def prove_composites(executable: Executable) -> int:
    """Raise InvalidExecutable unless each composite's codelet gives what its body gives; return how many were run.

    Those are left out that read and write more than ``BYTES``, whose body runs more than ``VISITS`` steps or as many
    as data say, and whose memory is more than ``MEMORY``; all of them on all replicas together.
    """
    done = set[int]()
    engines: Engines = {}
    for node in nodes_of(executable.program):
        if not isinstance(node, Composite) or node.number in done:
            continue
        number, body = node.number, node.body
        whole = executable.composites[number]
        if _bytes(executable, whole) > BYTES or not 0 <= _visits(executable, body) <= VISITS:
            continue
        inputs = _inputs(executable, whole)
        alone = _alone(executable, number, body, whole, tuple(v.name for v in inputs))
        if _memory(alone) <= MEMORY:
            _prove(alone, number, whole, inputs, engines)
            done.add(number)
    return len(done)


def _bytes(executable: Executable, whole: VertexGroup) -> int:
    names = (*(operand.variable for operand in whole.operands), *whole.results)
    variables = [executable.variables[name] for name in names]
    return executable.replicas.count * sum(math.prod(v.shape) * itemsize(v.dtype) for v in variables)


def _visits(executable: Executable, body: Part) -> int:
    """Return how many steps a body runs on all replicas; -1 where that depends on data."""
    runs = [count for _, part, count in runs_of_parts(body, {}) if isinstance(part, int)]
    return -1 if None in runs else executable.replicas.count * sum(count or 0 for count in runs)


def _memory(alone: Executable) -> int:
    """Return the bytes that the engine with tile memory takes for a program on all replicas."""
    return alone.replicas.count * alone.target.num_tiles * sum(end - first for first, end in alone.data_spans)


def _inputs(executable: Executable, whole: VertexGroup) -> list[Variable]:
    """Return what a composite reads, constants aside."""
    roots = dict.fromkeys(root_of(executable, operand.variable) for operand in whole.operands)
    return [executable.variables[name] for name in roots if executable.variables[name].kind != CONSTANT]


Engines = dict[Hashable, FastEngine]
"""Engines that run codelets, by what decides what they compute: those of equal composites are compiled once."""


def _prove(
    alone: Executable, number: int, whole: VertexGroup, inputs: list[Variable], engines: Engines
) -> None:
    """Run one composite, a program of its own, by its codelet and by its body.

    Without floats anywhere the ring is the machine's own arithmetic, so once is enough.
    """
    function = _function(alone, number, whole, inputs)
    rng = np.random.default_rng(len(alone.composites) + number)
    combiner = whole.codelet.combiner()
    adds, chooses = combiner == "add", _chooses(whole.codelet)
    is_equal = isinstance(whole.codelet, Collective) and whole.codelet.expects_equal
    has_floats = any(is_float(v.dtype) for v in alone.variables.values())
    for arithmetic, draws in DRAWS.items():
        if arithmetic == FLOAT and not has_floats:
            continue
        key = arithmetic, function
        codelet, steps = engines.get(key) or FastEngine(alone, arithmetic), LiteralEngine(alone, arithmetic)
        engines[key] = codelet
        for share, special in draws:
            if (
                arithmetic == FLOAT and chooses
            ):  # XLA drops NaN, and which zero is greater, see docs/numerics.md
                special = tuple(value for value in special if value and not math.isnan(value)) or (1.0,)
            values = [_drawn_for_all(rng, alone, v, share, special, is_equal) for v in inputs]
            try:
                with jax.enable_x64(True):
                    want, got = codelet.run(*values)[0], steps.run(*values)[0]
            except Exception as error:
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                raise refuse(
                    f"composite {whole.name}: {whole.codelet.name} cannot be run beside its body: {reason}",
                    whole.location,
                ) from error
            for name, one, other in zip(whole.results, want, got, strict=True):
                if not _agree(np.asarray(one), np.asarray(other), adds):
                    raise refuse(
                        f"composite {whole.name}: {whole.codelet.name} gives another {name} than its body does",
                        whole.location,
                    )


def _function(alone: Executable, number: int, whole: VertexGroup, inputs: list[Variable]) -> Hashable:
    """Return what decides what a composite's codelet gives for given inputs; its own number where that is more than types."""
    places = {v.name: k for k, v in enumerate(inputs)}
    read = [places.get(operand.variable) for operand in whole.operands]
    if None in read:  # a constant, or a view of something
        return number
    written = [alone.variables[name] for name in whole.results]
    types = tuple((v.shape, v.dtype) for v in (*inputs, *written))
    return whole.codelet, whole.form, whole.plan, tuple(read), types


def _chooses(codelet: Codelet) -> bool:
    """Whether a codelet takes the greatest or least of floats."""
    return codelet.combiner() in ("max", "min") or getattr(codelet, "operation", "") in ("max", "min")


def _alone(
    executable: Executable, number: int, body: Part, whole: VertexGroup, inputs: tuple[str, ...]
) -> Executable:
    """Return a composite as a program of its own, with no more memory than it touches.

    Steps keep their numbers; what others than the body's would print, raise or decide by is not there.
    """
    steps = records_of(executable, body)
    own = set(steps_of(body))
    names = {name for step in steps for name in (*read_by(step), *written_by(step))}
    names |= {*inputs, *whole.results, *(operand.variable for operand in whole.operands)}
    views = list(names)
    while views:  # what a view is of may be a view
        views = [of for view in views if (of := executable.variables[view].view_of) and of not in names]
        names.update(views)
    variables = {name: v for name, v in executable.variables.items() if name in names}
    groups = [group for step in steps if isinstance(step, ExecuteStep) for group in step.groups]
    buffers = {v.storage for v in variables.values()} | {o.buffer for g in groups for o in g.operands}
    return dataclasses.replace(
        executable,
        program=Composite(number, body),
        steps=tuple(
            step if n in own else SyncStep(step.name, external=False)
            for n, step in enumerate(executable.steps)
        ),
        variables=variables,
        buffers={name: b for name, b in executable.buffers.items() if name in buffers},
        inputs=inputs,
        outputs=whole.results,
        donated=(),
        streams={},
        remote_buffers={},
        differs_along=() if executable.system is None else (executable.replicas.names,) * len(inputs),
    )


def _agree(one: np.ndarray, other: np.ndarray, adds: bool) -> bool:
    """Whether two results have the same words; floats that are sums, up to the order of additions.

    Sums of 8-bit floats depend on it by any factor: what is added to sixteen times as much is lost. The ring tells those.
    """
    if not adds or not is_float(one.dtype.name):
        return one.tobytes() == other.tobytes() or bool(np.isnan(one).any() and _same_but_nan(one, other))
    with np.errstate(invalid="ignore"):
        a, b = one.astype(np.float64), other.astype(np.float64)
        if one.dtype.itemsize == 1:
            return bool((np.isnan(a) == np.isnan(b)).all())
        return bool(((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= 0.02 * np.abs(a))).all())


def _same_but_nan(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether floats have the same bits, where they are numbers; which NaN it is nobody says."""
    undefined = np.isnan(one)
    return (
        np.array_equal(undefined, np.isnan(other))
        and one[~undefined].tobytes() == other[~undefined].tobytes()
    )


def _drawn_for_all(
    rng: np.random.Generator,
    executable: Executable,
    v: Variable,
    share: float,
    special: tuple[float, ...],
    is_equal: bool,
) -> np.ndarray:
    """Return a variable's values; of replicas, ``[replicas, *shape]``, equal on all if they are to be."""
    if not executable.replicas.axes:
        return _drawn(rng, v, share, special)
    if is_equal:
        return np.stack([_drawn(rng, v, share, special)] * executable.replicas.count)
    return np.stack([_drawn(rng, v, share, special) for _ in range(executable.replicas.count)])


def _drawn(rng: np.random.Generator, v: Variable, share: float, special: tuple[float, ...]) -> np.ndarray:
    """Return values with repeats among them: floats, a share of them special, truths, and small offsets."""
    if is_float(v.dtype):
        values = np.round(rng.standard_normal(v.shape) * 8) / 4 + 0.0  # zeros without a sign
        values = np.where(rng.random(v.shape) < share, rng.choice(special, v.shape), values)
        return values.astype(to_jax(v.dtype))
    if not is_integer(v.dtype):
        return rng.integers(0, 2, v.shape).astype(to_jax(v.dtype))
    low = -3 if np.issubdtype(to_jax(v.dtype), np.signedinteger) else 0
    return rng.integers(low, 60, v.shape).astype(to_jax(v.dtype))
