"""What ``jax.stages`` says of a program's arguments and results, in its words, said of a signature."""

from __future__ import annotations

import jax
from jax.core import ShapedArray

from ipuxla._jax_compat import Tree, TreeDef, tree_unflatten
from ipuxla.signature import LeafType, Signature


class Described:
    """A program with a ``signature``; arguments and results are told in their structure as in ``jax.stages``."""

    signature: Signature

    @property
    def in_tree(self) -> TreeDef | None:
        """Structure of ``(args, kwargs)``, static arguments left out."""
        return self.signature.in_tree

    @property
    def out_tree(self) -> TreeDef | None:
        """Structure of the result."""
        return self.signature.out_tree

    @property
    def in_avals(self) -> Tree:
        """Type of each argument leaf, in the structure of the arguments."""
        return _in_structure(self.in_tree, self.signature.inputs)

    @property
    def args_info(self) -> Tree:
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
    def out_info(self) -> Tree:
        """Type of each result leaf, in the structure of the result; of floats as they are outside of the ring."""
        return _in_structure(self.out_tree, tuple(map(_array_type, self.signature.outputs)))

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Positions of the donated argument leaves."""
        return self.signature.donated


def _in_structure(tree: TreeDef | None, leaves: tuple[Tree, ...]) -> Tree:
    return leaves if tree is None else tree_unflatten(tree, leaves)


def _array_type(leaf: LeafType) -> jax.ShapeDtypeStruct:
    if leaf.key is None:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.np_dtype)
    return jax.ShapeDtypeStruct(leaf.shape, jax.random.key(0, impl=leaf.key).dtype)
