"""What a compiled program takes and returns: pytrees, leaf types, argument names; and these as plain data.

JAX arrays of random keys travel as their words, complex numbers as two arrays, the real and the imaginary parts,
derivatives of integers (``float0``, which has no values) as false; here is the one place that takes them apart and
puts them together.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Ref
from jax.core import Tracer

from ipuxla._jax_compat import (
    Datum,
    DTypeLike,
    Path,
    Tree,
    TreeDef,
    keystr,
    tree_flatten_with_path,
    tree_structure,
    tree_unflatten,
)
from ipuxla.errors import InvalidExecutable, WrongArguments
from ipuxla.sharding import Placement
from tiles.files import JsonObject

SHOWN = 5
"""Arguments that an error message names one by one."""
LONGEST = 200
"""Characters of a structure or a name in an error message."""
_LEAF = "*"
_PLAIN_KEYS = (str, int, float, bool, type(None))
_SCALAR_KINDS = {bool: "b", int: "iu", float: "f", complex: "c"}


HOLDERS = {
    **{"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"},
    **dict.fromkeys(("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"), "float16"),
    "float0": "bool",  # as JAX lowers it
}
"""What engines take and return for numbers that no machine has: the importer computes in these."""
FLOAT0 = jax.dtypes.float0


def narrow_name(element: str) -> str | None:
    """Return numpy's name of one of StableHLO's narrow types (``ui4``, ``f4E2M1FN``), None for others."""
    if element.startswith("f"):
        name = f"float{element[1]}_{element[2:].lower()}"
    else:
        name = f"{'uint' if element.startswith('u') else 'int'}{element.lstrip('ui')}"
    return name if name in HOLDERS else None


def element_name(dtype: DTypeLike) -> str:
    """Return the numpy-style name of an element type, ``float0`` among them, of which numpy says ``void``."""
    return "float0" if dtype == FLOAT0 else np.dtype(dtype).name


def _dtype(name: str) -> np.dtype:
    """Return the element type of a name."""
    return FLOAT0 if name == "float0" else jnp.dtype(name)


@dataclasses.dataclass(frozen=True)
class LeafType:
    """Type of one array.

    Args:
      shape: logical shape; that of the keys where ``key`` is set.
      dtype: numpy-style name of the elements, or of the words of a key.
      key: name of the random number generator whose keys these are, or None for plain arrays.
    """

    shape: tuple[int, ...]
    dtype: str
    key: str | None = None

    @classmethod
    def of(cls, array: Datum) -> LeafType:
        """Return the type of an array."""
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            return cls(tuple(array.shape), "uint32", str(jax.random.key_impl(array)))
        return cls(tuple(array.shape), element_name(array.dtype))

    @classmethod
    def from_data(cls, data: JsonObject) -> LeafType:
        """Return the type whose fields ``data`` holds."""
        return cls(tuple(map(int, data["shape"])), element_name(_dtype(data["dtype"])), data["key"])

    @functools.cached_property
    def np_dtype(self) -> np.dtype:
        """Type of an element, or of a word of a key."""
        return _dtype(self.dtype)

    @functools.cached_property
    def is_complex(self) -> bool:
        """Whether the elements are complex numbers, which engines take and return as two arrays."""
        return self.np_dtype.kind == "c"

    @functools.cached_property
    def words(self) -> tuple[LeafType, ...]:
        """Types of the arrays that engines take or return for this one."""
        if self.dtype in HOLDERS:
            return (LeafType(self.shape, HOLDERS[self.dtype]),)
        if not self.is_complex:
            return (self,)
        part = LeafType(self.shape, f"float{4 * self.np_dtype.itemsize}")
        return (part, part)

    def to_words(self, array: Datum) -> tuple[Datum, ...]:
        """Return what engines take: keys as their words, complex numbers as parts, numbers as arrays."""
        if self.key is not None:
            return (jax.random.key_data(array),)
        if not isinstance(array, jax.Array | np.ndarray):
            array = self._as_array(array)
        if self.np_dtype == FLOAT0:
            return (np.zeros(array.shape, bool),)
        if self.dtype in HOLDERS:
            return (array.astype(HOLDERS[self.dtype]),)
        if not self.is_complex:
            return (array,)
        return (array.real, array.imag)

    def _as_array(self, number: Datum) -> jax.Array | np.ndarray:
        if type(number) in _SCALAR_KINDS:
            with jax.enable_x64(self.words[0].np_dtype.itemsize == 8):
                return jnp.asarray(number)
        return np.asarray(number, self.np_dtype)

    def from_words(self, arrays: Sequence[Datum]) -> Datum:
        """Return an engine's results for this one as the caller expects them.

        Words of the ring, which stand for the parts of complex numbers, lie along a last axis of 2.
        """
        if self.key is not None:
            return jax.random.wrap_key_data(arrays[0], impl=self.key)
        if self.np_dtype == FLOAT0:
            return np.zeros(arrays[0].shape, FLOAT0)
        if self.dtype in HOLDERS:
            is_word = self.dtype.startswith("float") and arrays[0].dtype == np.uint16  # of the ring
            return arrays[0] if is_word else _narrowed(arrays[0], self.np_dtype)
        if not self.is_complex:
            return arrays[0]
        is_ring = jnp.issubdtype(arrays[0].dtype, jnp.unsignedinteger)
        return jnp.stack(arrays, axis=-1) if is_ring else jax.lax.complex(*arrays)

    def accepts(self, array: Datum) -> bool:
        """Whether an argument has exactly this type; Python numbers have the type they are compiled to."""
        kinds = _SCALAR_KINDS.get(type(array))
        if kinds is not None:
            return self.shape == () and self.key is None and self.np_dtype.kind in kinds
        if not hasattr(array, "dtype") or not hasattr(array, "shape"):
            return False
        if self.key is not None:
            return LeafType.of(array) == self
        return array.dtype == self.np_dtype and array.shape == self.shape

    def __str__(self) -> str:
        """Write it as JAX does: float32[2,3]."""
        return f"{self.dtype if self.key is None else f'key<{self.key}>'}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Signature:
    """Arguments and results of a compiled program.

    Args:
      inputs: type of each argument leaf.
      outputs: type of each result leaf; under ring arithmetic floats come back as words of the same width.
      names: name of each argument leaf ("params['w']").
      in_tree: structure of ``(args, kwargs)``; None: the leaves are the arguments.
      out_tree: structure of the result; None: a tuple of the leaves.
      donated: argument leaves that a call consumes.
      notes: what a caller should know, such as a structure that a file could not hold.
      placement: the devices that run it together, and what of arguments and results each holds; None for one.
    """

    inputs: tuple[LeafType, ...]
    outputs: tuple[LeafType, ...]
    names: tuple[str, ...]
    in_tree: TreeDef | None = None
    out_tree: TreeDef | None = None
    donated: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    placement: Placement | None = None

    @property
    def words_placement(self) -> Placement | None:
        """How the arrays that engines take and return are sharded."""
        if self.placement is None:
            return None
        return self.placement.repeated(
            *([len(x.words) for x in role] for role in (self.inputs, self.outputs))
        )

    @property
    def donated_words(self) -> tuple[int, ...]:
        """Positions of the donated ones among the arrays that engines take."""
        owners = [number for number, leaf in enumerate(self.inputs) for _ in leaf.words]
        return tuple(position for position, owner in enumerate(owners) if owner in self.donated)

    def flatten(self, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> list[Datum]:
        """Return the leaves of a call's arguments.

        Raises:
          WrongArguments: another structure, shape or element type, named by its path, or a JAX tracer.
        """
        paths, tree = tree_flatten_with_path((args, kwargs))
        leaves = [leaf for _, leaf in paths]
        self._check_structure(tree, len(leaves), args, kwargs)
        wrong = [
            (_argument(path), leaf, expected)
            for (path, leaf), expected in zip(paths, self.inputs, strict=True)
            if isinstance(leaf, Tracer | Ref) or not expected.accepts(leaf)
        ]
        if wrong:
            raise _of_another_type(wrong)
        return leaves

    def _check_structure(
        self, tree: TreeDef, count: int, args: tuple[Tree, ...], kwargs: dict[str, Tree]
    ) -> None:
        if self.in_tree is None and not kwargs and count == len(args) == len(self.inputs):
            return
        if self.in_tree is not None and tree == self.in_tree:
            return
        notes = list(self.notes)
        if self.in_tree is not None:
            wanted, given = ({path: None for path in _paths(tree)} for tree in (self.in_tree, tree))
            notes += _some(f"missing: {path}" for path in wanted if path not in given)
            notes += _some(f"unexpected: {path}" for path in given if path not in wanted)
        try_ = "pass what the function was lowered with, static arguments left out"
        if self.in_tree is None and count == len(self.inputs):
            try_ = "pass the leaves: program(*jax.tree.leaves((args, kwargs)))"
        names = [_shortened(name) for name in self.names[:SHOWN]]
        names += [f"{len(self.names) - SHOWN:,} more"] if len(self.names) > SHOWN else []
        raise WrongArguments(
            f"the program takes other arguments: {', '.join(names) or 'none'}",
            expected=f"{len(self.inputs)} arrays"
            + ("" if self.in_tree is None else _structure(self.in_tree)),
            got=f"{count} arrays{_structure(tree)}",
            notes=tuple(notes),
            try_=try_,
        )

    def unflatten(self, leaves: Sequence[Datum]) -> Tree:
        """Return result leaves in the structure of the result."""
        return tuple(leaves) if self.out_tree is None else tree_unflatten(self.out_tree, leaves)

    def to_data(self) -> JsonObject:
        """Return this as JSON types; a structure that they cannot say is left out, with a note."""
        notes, trees = list(self.notes), {}
        for role, what, tree, flat in (
            ("in_tree", "arguments", self.in_tree, "it takes their leaves, in order"),
            ("out_tree", "result", self.out_tree, "it returns a tuple of the leaves"),
        ):
            trees[role] = None if tree is None else _tree_data(tree)
            if tree is not None and trees[role] is None:
                names = list(dict.fromkeys(_foreign(tree)))
                named = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" * (len(names) > SHOWN))
                notes.append(f"the structure of its {what} holds a type that a file cannot ({named}): {flat}")
        return {
            "inputs": [dataclasses.asdict(leaf) for leaf in self.inputs],
            "outputs": [dataclasses.asdict(leaf) for leaf in self.outputs],
            "names": list(self.names),
            "donated": list(self.donated),
            "notes": notes,
            **trees,
            **({} if self.placement is None else {"placement": self.placement.to_data()}),
        }

    @classmethod
    def from_data(cls, data: JsonObject) -> Signature:
        """Return the signature that ``to_data`` wrote.

        Raises:
          InvalidExecutable: the data is damaged.
        """
        try:
            kept = cls(
                inputs=tuple(map(LeafType.from_data, data["inputs"])),
                outputs=tuple(map(LeafType.from_data, data["outputs"])),
                names=tuple(map(str, data["names"])),
                donated=tuple(map(int, data["donated"])),
                notes=tuple(map(str, data["notes"])),
                in_tree=_tree_from(data["in_tree"]),
                out_tree=_tree_from(data["out_tree"]),
                placement=Placement.from_data(data["placement"]) if "placement" in data else None,
            )
            same = json.dumps(kept.to_data(), sort_keys=True) == json.dumps(data, sort_keys=True)
            kept._require_whole()
        except InvalidExecutable:
            raise
        except Exception as error:  # whatever is wrong about data from anywhere
            raise InvalidExecutable(
                f"the program's signature is damaged: {type(error).__name__}: {error}"
            ) from error
        if not same:
            raise InvalidExecutable("the program's signature is damaged: it would be written otherwise")
        return kept

    def _require_whole(self) -> None:
        """Raise InvalidExecutable unless its parts fit together."""
        for tree, flat in ((self.in_tree, self.inputs), (self.out_tree, self.outputs)):
            if tree is not None and tree.num_leaves != len(flat):
                raise InvalidExecutable(
                    "the program's signature is damaged", expected=f"{len(flat)} leaves", got=tree
                )
        if self.in_tree is not None and not _is_call(self.in_tree):
            raise InvalidExecutable("the program's arguments are no positional and keyword ones")
        placement = self.placement
        if placement and (len(placement.inputs), len(placement.outputs)) != (
            len(self.inputs),
            len(self.outputs),
        ):
            raise InvalidExecutable("the program's signature places other arguments or results than it has")
        if placement and not self._is_placed(placement):
            raise InvalidExecutable("the program's signature places arrays of other shapes than it has")
        is_known = set(self.donated) <= set(range(len(self.inputs)))
        if len(self.names) != len(self.inputs) or not is_known or len(set(self.donated)) < len(self.donated):
            raise InvalidExecutable("the program's signature names, or donates, what is no argument")

    def _is_placed(self, placement: Placement) -> bool:
        """Whether a placement is of arrays of these ranks, results of these shapes."""
        inputs = zip(self.inputs, placement.inputs, strict=True)
        outputs = zip(self.outputs, placement.result_shapes, strict=True)
        return all(len(word.shape) == len(s.dimensions) for x, s in inputs for word in x.words) and all(
            tuple(word.shape) == shape for x, shape in outputs for word in x.words
        )


def _narrowed(array: Datum, dtype: np.dtype) -> Datum:
    """Return numbers in a narrow type, in numpy's array where XLA has none of that type."""
    return (np.asarray(array) if dtype.name.startswith("float6") else array).astype(dtype)


def describe(value: object) -> str:
    """Return a value's type for an error message: ``float32[3,4]``, or the Python type."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return str(LeafType.of(value))
    return type(value).__name__


def _argument(path: Path) -> str:
    """Return the words for one leaf's place: argument 0['w'], keyword argument batch[1]."""
    kind, first, *rest = path
    tail = keystr(tuple(rest))
    return f"argument {first.idx}{tail}" if kind.idx == 0 else f"keyword argument {first.key}{tail}"


def _paths(tree: TreeDef) -> list[str]:
    """Return the words for the place of each leaf of ``(args, kwargs)``."""
    leaves, _ = tree_flatten_with_path(tree_unflatten(tree, [0] * tree.num_leaves))
    return [_argument(path) for path, _ in leaves]


def _structure(tree: TreeDef) -> str:
    """Return a tree as an error message goes on with it, nothing where it is too long to be read."""
    text = str(tree).removeprefix("PyTreeDef(").removesuffix(")")
    return f", {text}" if len(text) <= LONGEST else ""


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


def _some(lines: Iterable[str]) -> list[str]:
    """Return the first few lines of a message, and how many there are besides."""
    found = [_shortened(line) for line in lines]
    more = len(found) - SHOWN
    return found if more <= 0 else [*found[:SHOWN], f"and {more:,} more like the last one"]


def _of_another_type(wrong: Sequence[tuple[str, Datum, LeafType]]) -> WrongArguments:
    """Return the error of arguments, each with its place and the type that is taken, that are of other types."""
    place, leaf, expected = wrong[0]
    others = _some(f"{p} is {describe(x)}, not {e}" for p, x, e in wrong[1:])
    if isinstance(leaf, Tracer):
        return WrongArguments(
            f"{place} is traced by JAX; a compiled program takes arrays",
            got=_shortened(str(leaf)),
            try_="transform the decorated function: jax.grad, jax.vmap and jax.jit work on that",
        )
    if isinstance(leaf, Ref):
        return WrongArguments(
            f"{place} is a Ref; a compiled program takes its value and returns its last value",
            expected=str(expected),
            try_="pass the Ref's value, ref[...]; or call the decorated function, which writes to the Ref",
        )
    return WrongArguments(
        f"{place} is not of the type the program was compiled for",
        notes=tuple(others),
        expected=str(expected),
        got=describe(leaf),
        try_="convert the argument, or compile again for this type",
    )


def _tree_data(tree: TreeDef) -> object:
    """Return a tree of dicts, lists, tuples and None as JSON types; None if it holds anything else."""
    node = tree.node_data()
    if node is None:
        return _LEAF
    kind, keys = node
    children = [_tree_data(child) for child in tree.children()]
    if any(child is None for child in children):
        return None
    if kind is dict:
        return ["dict", list(keys), children] if all(isinstance(key, _PLAIN_KEYS) for key in keys) else None
    names = {list: "list", tuple: "tuple", type(None): "none"}
    return [names[kind], children] if kind in names else None


def _foreign(tree: TreeDef) -> Iterator[str]:
    """Yield names of the types in a tree for which ``_tree_data`` has no words."""
    node = tree.node_data()
    if node is None:
        return
    kind, keys = node
    if kind is dict and not all(isinstance(key, _PLAIN_KEYS) for key in keys):
        yield f"a dict with keys of type {type(next(k for k in keys if not isinstance(k, _PLAIN_KEYS))).__name__}"
    elif kind not in (dict, list, tuple, type(None)):
        yield kind.__name__
    for child in tree.children():
        yield from _foreign(child)


def _is_call(tree: TreeDef) -> bool:
    """Whether a tree is that of ``(args, kwargs)``."""
    skeleton = tree_unflatten(tree, [0] * tree.num_leaves)
    if not (isinstance(skeleton, tuple) and list(map(type, skeleton)) == [tuple, dict]):
        return False
    return all(isinstance(name, str) for name in skeleton[1])


def _tree_from(data: object) -> TreeDef | None:
    return None if data is None else tree_structure(_skeleton(data))


def _skeleton(data: Tree) -> Tree:
    """Return a pytree of the structure that ``_tree_data`` described."""
    if data == _LEAF:
        return 0
    kind, *parts = data
    if kind == "dict":
        return dict(zip(parts[0], map(_skeleton, parts[1]), strict=True))
    return {"list": list, "tuple": tuple, "none": lambda _: None}[kind](map(_skeleton, parts[0]))
