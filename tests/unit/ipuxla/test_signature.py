"""What a program takes and returns: checks by path, and the plain data of pytrees."""

from __future__ import annotations

import collections
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ipuxla.errors import InvalidExecutable, WrongArguments
from ipuxla.signature import LeafType, Signature

X = jnp.zeros((2, 3))


def signature_of(args, kwargs=None, result=None) -> Signature:
    tree = (args, kwargs or {})
    leaves = [LeafType.of(leaf) for leaf in jax.tree.leaves(tree)]
    names = tuple(f"a{n}" for n in range(len(leaves)))
    outputs = tuple(LeafType.of(leaf) for leaf in jax.tree.leaves(result))
    return Signature(tuple(leaves), outputs, names, jax.tree.structure(tree), jax.tree.structure(result))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (X, "float32[2,3]"),
        (jnp.zeros((), jnp.bfloat16), "bfloat16[]"),
        (np.zeros(4, np.float64), "float64[4]"),
        (np.zeros(1, bool), "bool[1]"),
        (jax.random.key(0), "key<threefry2x32>[]"),
        (jax.random.split(jax.random.key(0, impl="rbg"), 3), "key<rbg>[3]"),
    ],
)
def test_types_read_as_jax_writes_them(array, text):
    assert str(LeafType.of(array)) == text
    assert LeafType.of(array).accepts(array)


def test_keys_travel_as_words():
    key = jax.random.key(7)
    leaf = LeafType.of(key)
    words = leaf.to_words(key)
    np.testing.assert_array_equal(words[0], jax.random.key_data(key))
    assert (jax.random.bits(leaf.from_words(words)) == jax.random.bits(key)).item()


@pytest.mark.parametrize(
    ("leaf", "value", "accepted"),
    [
        (LeafType((), "float32"), 2.0, True),
        (LeafType((), "float64"), 2.0, True),
        (LeafType((), "int32"), 2, True),
        (LeafType((), "float32"), 2, False),
        (LeafType((), "bool"), True, True),
        (LeafType((), "int32"), True, False),
        (LeafType((1,), "float32"), 2.0, False),
        (LeafType((), "float32"), np.float64(2), False),
        (LeafType((), "float32"), "2", False),
    ],
)
def test_python_numbers_have_the_type_they_compile_to(leaf, value, accepted):
    assert leaf.accepts(value) == accepted


def test_python_numbers_keep_their_width():
    assert LeafType((), "float64").to_words(0.1)[0].dtype == np.float64
    assert LeafType((), "float32").to_words(0.1)[0].dtype == np.float32
    assert [x.dtype for x in LeafType((), "complex64").to_words(0.1j)] == [np.float32] * 2
    assert [x.dtype for x in LeafType((), "complex128").to_words(0.1j)] == [np.float64] * 2


def test_complex_numbers_travel_as_parts():
    array = np.array([1 + 2j, 3], np.complex64)
    leaf = LeafType.of(array)
    assert leaf.words == (LeafType((2,), "float32"),) * 2
    words = leaf.to_words(array)
    np.testing.assert_array_equal(words, [[1, 3], [2, 0]])
    np.testing.assert_array_equal(leaf.from_words([np.float32(w) for w in words]), array)
    in_ring = leaf.from_words([np.array([5, 6], np.uint32), np.array([7, 8], np.uint32)])
    np.testing.assert_array_equal(in_ring, [[5, 7], [6, 8]])


def test_donated_words_follow_complex_arguments():
    leaves = tuple(LeafType((2,), dtype) for dtype in ("float32", "complex64", "float32", "complex64"))
    signature = Signature(leaves, (), ("a", "b", "c", "d"), donated=(1, 2))
    assert signature.donated_words == (1, 2, 3)


def test_leaves_in_order_and_back():
    signature = signature_of(({"b": X, "a": X + 1},), {"k": X + 2}, result=[X, (X, None)])
    leaves = signature.flatten(({"b": X, "a": X + 1},), {"k": X + 2})
    assert [float(leaf[0, 0]) for leaf in leaves] == [1, 0, 2]
    assert jax.tree.structure(signature.unflatten([1, 2])) == jax.tree.structure([1, (2, None)])


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        (({"w": X[:1], "b": X}, X), {}, ["argument 0['w']", "expected: float32[2,3]", "got: float32[1,3]"]),
        (({"w": X, "b": X}, X.astype(int)), {}, ["argument 1 ", "expected: float32[2,3]", "got: int32[2,3]"]),
        (({"w": X, "b": X}, "text"), {}, ["argument 1 ", "got: str"]),
        (({"w": X, "b": X},), {}, ["missing: argument 1"]),
        (({"w": X, "c": X}, X), {}, ["missing: argument 0['b']", "unexpected: argument 0['c']"]),
        (({"w": X, "b": X}, X), {"n": X}, ["unexpected: keyword argument n"]),
    ],
)
def test_wrong_arguments_are_named_by_path(args, kwargs, said):
    signature = signature_of(({"w": X, "b": X}, X))
    with pytest.raises(WrongArguments) as caught:
        signature.flatten(args, kwargs)
    for part in [*said, "try:"]:
        assert part in str(caught.value)


def test_tracers_are_refused():
    signature = signature_of((X,))
    with pytest.raises(WrongArguments, match="traced by JAX"):
        jax.jit(lambda x: signature.flatten((x,), {}))(X)


def test_flat_signature_takes_arrays_in_order():
    signature = Signature((LeafType((2, 3), "float32"),) * 2, (), ("a", "b"))
    assert len(signature.flatten((X, X), {})) == 2
    assert signature.unflatten([1, 2]) == (1, 2)
    for args in ((X,), ((X, X),), (X, X, X)):
        with pytest.raises(WrongArguments, match="2 arrays"):
            signature.flatten(args, {})


def through_json(signature: Signature) -> Signature:
    return Signature.from_data(json.loads(json.dumps(signature.to_data())))


def test_plain_structures_survive_a_file():
    args = ({"a": [X, None, (X, {3: X, 1: X})]}, jax.random.key(0))
    signature = signature_of(args, {"k": X}, result=(X, {"loss": X}))
    assert through_json(signature) == signature


def test_a_structure_a_file_cannot_hold_becomes_leaves_with_a_note():
    point = collections.namedtuple("Point", "x y")
    signature = signature_of((point(X, X),), result=(X, {"loss": X}))
    back = through_json(signature)
    assert back.in_tree is None
    assert back.out_tree == signature.out_tree
    assert "(Point): it takes their leaves" in back.notes[0]
    assert len(back.flatten((X, X), {})) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": [{"shape": [2, 3]}]},
        {"inputs": [{"shape": [2, 3], "dtype": "float33", "key": None}]},
        {"in_tree": ["dict"]},
        {"in_tree": ["set", []]},
        {"out_tree": ["tuple", ["*", "*"]]},
        {"names": None},
    ],
)
def test_damaged_data_is_refused(change):
    data = {**signature_of((X,), result=X).to_data(), **change}
    with pytest.raises(InvalidExecutable, match="damaged"):
        Signature.from_data(data)
