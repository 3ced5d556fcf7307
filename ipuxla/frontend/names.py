"""JAX's name stacks, as it writes them into StableHLO: ``jit(step)/transpose(jvp(GPT))/Block_3/Dense_0/dot_general``.

A name stack mixes what the program named (``jax.named_scope``, modules of libraries), what transformed it, what JAX
itself names on the way (loops, calls, rematerialization) and, last, the primitive.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from hlo_passes.ir import plain_transforms

_WRAPPED = re.compile(r"(jvp|transpose|vmap|pmap|shard_map|jit|pjit|known)\((.*)\)", re.DOTALL)
_FUNCTIONS = ("jit", "pjit")
"""Wrappers whose inside is a function's name and not a scope."""

_OURS = ("known",)
"""Wrappers that this package puts around the names of programs; they say nothing of an operation."""

_MARKS = {"checkpoint": "checkpoint", "rematted_computation": "rematted"}
"""Names that JAX gives to what a transform made, and what is said of it here."""

_CALLS = re.compile(r"closed_call|core_call|custom_[jv]+p_call(_jaxpr)?")
_CONTROL = re.compile(r"while/(body|cond)|cond/branch_\d+_fun")
"""What JAX calls the parts of loops and branches."""


class NameStack(NamedTuple):
    """The names a program gave, ``GPT/Block_3/Dense_0``, and what transformed it, outermost first."""

    scope: str = ""
    transforms: tuple[str, ...] = ()


class _Part(NamedTuple):
    """One name of a stack, empty for a function's, and the transforms around it."""

    transforms: tuple[str, ...]
    name: str


def read_name_stack(text: str) -> NameStack:
    """Return what a location's text names, without its last name, the primitive's."""
    return _read(*_split(text)[:-1])


@functools.lru_cache(maxsize=4096)
def _read(*texts: str) -> NameStack:
    parts = [_part(text) for text in texts]
    transforms = [t for part in parts for t in (*part.transforms, *_mark(part.name))]
    named = [part for part in parts if part.name]
    names = [part.name for part in named[_last_beginning(named) :]]
    return NameStack("/".join(_given(names)), plain_transforms(transforms))


def _split(text: str) -> list[str]:
    """Return the names of a stack; a slash inside parentheses separates none."""
    if "(" not in text and ")" not in text:
        return text.split("/")
    parts, depth = [""], 0
    for character in text:
        if character == "/" and depth == 0:
            parts.append("")
            continue
        depth += (character == "(") - (character == ")")
        parts[-1] += character
    return parts if depth == 0 else text.split("/")


def _part(text: str) -> _Part:
    transforms: list[str] = []
    while (match := _WRAPPED.fullmatch(text)) is not None:
        wrapper, text = match.groups()
        if wrapper in _FUNCTIONS:
            text = ""
        elif wrapper not in _OURS:
            transforms.append(wrapper)
    return _Part(tuple(transforms), text)


def _mark(name: str) -> tuple[str, ...]:
    return (_MARKS[name],) if name in _MARKS else ()


def _last_beginning(parts: list[_Part], start: int = 0) -> int:
    """Return where the names of a stack begin for the last time.

    The backward pass of a checkpointed function is named by the stack of the backward pass and, after that, by the
    stack of the forward pass: ``transpose(jvp(GPT))/Block_1/jvp(GPT)/Block_1/checkpoint/Dense_0``.
    """
    outer, names = set(parts[start].transforms) if parts else set[str](), [part.name for part in parts]
    for at in range(start + 1, len(parts)):
        inner, length = set(parts[at].transforms), at - start
        if inner and inner < outer and names[at : at + length] == names[start:at]:
            return _last_beginning(parts, at)
    return start


def _given(names: list[str]) -> Iterator[str]:
    """Yield the names that the program gave, with no space in them."""
    before = ""
    for name, after in itertools.pairwise([*names, ""]):
        is_control = _CONTROL.fullmatch(f"{before}/{name}") or _CONTROL.fullmatch(f"{name}/{after}")
        if name and not (is_control or name in _MARKS or _CALLS.fullmatch(name)):
            yield re.sub(r"\s+", "_", name)
        before = name
