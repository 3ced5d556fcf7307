"""What ``jax.stages`` says of a program's arguments and results, in its words, said of a signature."""

from __future__ import annotations

from typing import Any

import jax
from jax.core import ShapedArray

from ipuxla.signature import LeafType, Signature


class Described:
    """A program with a ``signature``; arguments and results are told in their structure as in ``jax.stages``."""

    signature: Signature

    @property
    def in_tree(self) -> Any:
        """Structure of ``(args, kwargs)``, static arguments left out."""
        return self.signature.in_tree

    @property
    def out_tree(self) -> Any:
        """Structure of the result."""
        return self.signature.out_tree

    @property
    def in_avals(self) -> Any:
        """Type of each argument leaf, in the structure of the arguments."""
        return _in_structure(self.in_tree, self.signature.inputs)

    @property
    def args_info(self) -> Any:
        """Type of each argument leaf, and whether it is donated, in the structure of the arguments."""
        donated = self.signature.donated
        return _in_structure(
            self.in_tree,
            tuple(
                jax.stages.ArgInfo(ShapedArray(type_.shape, type_.dtype), n in donated)
                for n, type_ in enumerate(map(_array_type, self.signature.inputs))
            ),
        )

    @property
    def out_info(self) -> Any:
        """Type of each result leaf, in the structure of the result; of floats as they are outside of the ring."""
        return _in_structure(self.out_tree, tuple(map(_array_type, self.signature.outputs)))

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Positions of the donated argument leaves."""
        return self.signature.donated


def _in_structure(tree: Any, leaves: tuple[Any, ...]) -> Any:
    return leaves if tree is None else jax.tree.unflatten(tree, leaves)


def _array_type(leaf: LeafType) -> jax.ShapeDtypeStruct:
    if leaf.key is None:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.np_dtype)
    key = jax.eval_shape(lambda: jax.random.key(0, impl=leaf.key))
    return jax.ShapeDtypeStruct(leaf.shape, key.dtype)
