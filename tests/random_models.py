"""Networks that hypothesis draws: blocks, sizes, types, optimizers and loops as people put them together.

A ``Recipe`` is plain data whose text makes the same model again: ``build(Recipe(kind="mlp", ...))``. Arguments are
shapes alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.models.base import Model, Values
from tests.models.layers import (
    attention,
    attention_params,
    convolution,
    convolution_params,
    cross_entropy,
    dense,
    dense_params,
    layer_norm,
    norm_params,
    scope,
)
from tests.models.lstm import cell, cell_params
from tests.models.optimizers import (
    Optimizer,
    adafactor,
    adam,
    adamw,
    chain,
    clip_by_global_norm,
    lion,
    sgd,
    training_step,
)

KINDS = ("mlp", "transformer", "convolution", "recurrent")
TARGETS = ("gc200", "bow")
DTYPES = ("float32", "float16", "bfloat16")
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
}
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": sgd(0.1),
    "momentum": sgd(0.1, 0.9),
    "adam": adam(1e-3),
    "adamw": chain(clip_by_global_norm(1.0), adamw(1e-3)),
    "lion": lion(1e-4),
    "adafactor": adafactor(1e-2),
}
EXTENTS = {
    "mlp": (1,),
    "transformer": (8, 16, 33, 64, 100, 128),
    "convolution": (4, 7, 8, 14, 16, 28, 32),
    "recurrent": (1, 2, 5, 16),
}
MOST_VALUES = 1 << 21
"""Values of a layer's result: more models than not fit on a machine then."""


@dataclass(frozen=True)
class Recipe:
    """What a model is made of.

    Attributes:
      kind: its blocks, one of ``KINDS``.
      target: name of the machine.
      dtype: of parameters and inputs.
      width: features of every layer.
      depth: layers.
      batch: items.
      extent: positions of a sequence, or the side of an image.
      classes: what the last layer tells apart.
      activation: one of ``ACTIVATIONS``.
      is_residual: whether a layer adds to what it reads.
      is_normalized: whether a layer normalizes what it reads.
      is_scanned: whether ``lax.scan`` goes through the layers, not a loop in Python.
      optimizer: one of ``OPTIMIZERS``, or "" for inference.
      is_wide: whether the optimizer's state is in float32 whatever the parameters are in.
      is_donated: whether results may take the parameters' memory.
      heads: of attention.
      is_causal: whether a position attends to those before it alone.
      kernel: extent of a convolution.
      stride: of a convolution.
      padding: of a convolution.
      groups: of a convolution's channels.
    """

    kind: str
    target: str = "gc200"
    dtype: str = "float32"
    width: int = 16
    depth: int = 1
    batch: int = 1
    extent: int = 1
    classes: int = 10
    activation: str = "relu"
    is_residual: bool = False
    is_normalized: bool = False
    is_scanned: bool = False
    optimizer: str = ""
    is_wide: bool = False
    is_donated: bool = False
    heads: int = 1
    is_causal: bool = False
    kernel: int = 1
    stride: int = 1
    padding: str = "SAME"
    groups: int = 1


# ---- drawing


def recipes(kind: str, most_width: int = 2048, most_depth: int = 4, most_values: int = MOST_VALUES):
    """Return a strategy for recipes of a kind. It does not shrink: ``minimized`` does, which knows what a step costs.

    Args:
      kind: one of ``KINDS``.
      most_width: most features of a layer, of at least 16.
      most_depth: most layers.
      most_values: most values of a layer's result, where the smallest batch allows it.
    """

    def drawn(seed: int) -> Recipe:
        return random_recipe(np.random.default_rng(seed), kind, most_width, most_depth, most_values)

    return st.integers(0, 2**32 - 1).map(drawn)


def random_recipe(
    rng: np.random.Generator, kind: str, most_width: int, most_depth: int, most_values: int
) -> Recipe:
    """Return what a model of a kind is made of: sizes of all magnitudes, every other one a power of two."""

    def choice(options: Any) -> Any:
        return list(options)[int(rng.integers(len(list(options))))]

    def size(low: int, high: int) -> int:
        found = 2 ** rng.uniform(np.log2(low), np.log2(high + 1))
        return int(2 ** int(np.log2(found)) if rng.random() < 0.5 else min(high, max(low, int(found))))

    width, extent = size(16, most_width), choice(EXTENTS[kind])
    values = width * extent ** (2 if kind == "convolution" else 1)
    divisors = [n for n in range(1, 33) if width % n == 0]
    own: dict[str, Any] = {}
    if kind == "transformer":
        own = {"heads": choice(divisors), "is_causal": choice((False, True))}
    elif kind == "convolution":
        own = {
            "kernel": choice(range(1, 6)),
            "stride": choice((1, 2, 3)),
            "padding": choice(("SAME", "VALID")),
        }
        own["groups"] = choice((1, 1, choice(divisors), width))
    return Recipe(
        kind,
        choice(TARGETS),
        choice(DTYPES),
        width,
        choice(range(1, most_depth + 1)),
        size(1, max(1, min(128, most_values // values))),
        extent,
        choice((2, 10, 100, 1000)),
        choice(ACTIVATIONS),
        *(choice((False, True)) for _ in range(3)),
        choice(("", "", *OPTIMIZERS)),
        *(choice((False, True)) for _ in range(2)),
        **own,
    )


def minimized(recipe: Recipe, fails: Callable[[Recipe], bool]) -> Recipe:
    """Return a recipe that still fails and does no longer if any one field is as in the simplest, or half as large.

    ``fails`` says whether building and compiling a recipe ends as it must not; recipes that make no model do not fail.
    """
    simplest = Recipe(recipe.kind)
    found, before = recipe, None
    while found != before:
        before = found
        for field in dataclasses.fields(Recipe):
            now, least = getattr(found, field.name), getattr(simplest, field.name)
            smaller = [least] if now != least else []
            if isinstance(now, int) and not isinstance(now, bool) and now > least:
                smaller += [(now + least) // 2, now - 1]
            for value in smaller:
                attempt = dataclasses.replace(found, **{field.name: value})
                if fails(attempt):
                    found = attempt
                    break
    return found


# ---- building


def build(recipe: Recipe) -> Model:
    """Return the model of a recipe, with shapes for arguments."""
    new = Values(True, jnp.dtype(recipe.dtype))
    blocks = [BLOCKS[recipe.kind][0](new, recipe) for _ in range(recipe.depth)]
    if recipe.is_scanned:
        stacked = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((recipe.depth, *leaf.shape), leaf.dtype), blocks[0]
        )
    params = {
        "blocks": stacked if recipe.is_scanned else blocks,
        "stem": convolution_params(new, recipe.kernel, 3, recipe.width, bias=True)
        if recipe.kind == "convolution"
        else dense_params(new, recipe.width, recipe.width),
        "head": dense_params(new, recipe.width, recipe.classes),
    }
    batch = _batch(new, recipe)
    if not recipe.optimizer:
        return Model(lambda p, x: _logits(p, x, recipe), (params, batch[0]), recipe.batch, "items")

    def loss(p: Any, x: Any, labels: Any) -> Any:
        return cross_entropy(_logits(p, x, recipe).astype(jnp.float32), labels).mean()

    optimizer = OPTIMIZERS[recipe.optimizer]
    kept = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32 if recipe.is_wide else leaf.dtype), params
    )
    state = new.like(jax.eval_shape(optimizer.init, kept))
    donated = (0, 1) if recipe.is_donated else ()
    step = training_step(loss, optimizer)
    return Model(step, (params, state, *batch), recipe.batch, "items", donated, recipe.target)


def _batch(new: Values, recipe: Recipe) -> tuple[Any, Any]:
    """Return inputs and labels: of every position for a sequence, of every image or row otherwise."""
    side, rows = recipe.extent, (recipe.batch,)
    if recipe.kind == "convolution":
        return new.normal(*rows, side, side, 3), new.integers(recipe.classes, *rows)
    rows = rows if recipe.kind == "mlp" else (*rows, side)
    return new.normal(*rows, recipe.width), new.integers(recipe.classes, *rows)


def _logits(p: Any, x: Any, recipe: Recipe) -> Any:
    """Return the logits of every row, image or position."""
    apply = BLOCKS[recipe.kind][1]
    is_image = recipe.kind == "convolution"
    with scope("stem"):
        x = convolution(p["stem"], x, recipe.stride, _padding(recipe, x)) if is_image else dense(p["stem"], x)
    if recipe.is_scanned:
        with scope("blocks"):
            x, _ = lax.scan(lambda x, block: (_layer(apply, block, x, recipe), None), x, p["blocks"])
    else:
        for number, block in enumerate(p["blocks"]):
            with scope(f"block_{number}"):
                x = _layer(apply, block, x, recipe)
    with scope("head"):
        return dense(p["head"], x.mean((1, 2)) if is_image else x)


def _layer(apply: Callable[..., Any], block: Any, x: Any, recipe: Recipe) -> Any:
    """Return what a layer makes of what it reads, in the same type."""
    y = layer_norm(block["norm"], x) if recipe.is_normalized else x
    y = apply(block, y, recipe)
    return x + y if recipe.is_residual and x.shape == y.shape else y


def _padding(recipe: Recipe, x: Any) -> str:
    """Return the padding, such that something is left of an image."""
    return recipe.padding if x.shape[1] >= recipe.kernel else "SAME"


# ---- blocks: their parameters and what they compute


def _with_norm(new: Values, recipe: Recipe, params: dict[str, Any]) -> dict[str, Any]:
    return params | {"norm": norm_params(new, recipe.width)} if recipe.is_normalized else params


def _mlp_params(new: Values, recipe: Recipe) -> dict[str, Any]:
    return _with_norm(new, recipe, {"dense": dense_params(new, recipe.width, recipe.width)})


def _mlp(block: Any, x: Any, recipe: Recipe) -> Any:
    return ACTIVATIONS[recipe.activation](dense(block["dense"], x))


def _transformer_params(new: Values, recipe: Recipe) -> dict[str, Any]:
    n = recipe.width
    return _with_norm(
        new,
        recipe,
        {
            "attention": attention_params(new, n, recipe.heads),
            "up": dense_params(new, n, 4 * n),
            "down": dense_params(new, 4 * n, n),
        },
    )


def _transformer(block: Any, x: Any, recipe: Recipe) -> Any:
    mask = jnp.tril(jnp.ones((recipe.extent, recipe.extent), bool)) if recipe.is_causal else None
    with scope("attention"):
        x = x + attention(block["attention"], x, mask=mask)
    with scope("mlp"):
        return dense(block["down"], ACTIVATIONS[recipe.activation](dense(block["up"], x)))


def _convolution_params(new: Values, recipe: Recipe) -> dict[str, Any]:
    width, groups = recipe.width, recipe.groups
    kernel = convolution_params(new, recipe.kernel, width, width, groups, bias=True)
    return _with_norm(new, recipe, {"convolution": kernel})


def _convolution(block: Any, x: Any, recipe: Recipe) -> Any:
    """Shrink the image, unless ``lax.scan`` goes through the layers, which needs them all alike."""
    stride, padding = (1, "SAME") if recipe.is_scanned else (recipe.stride, _padding(recipe, x))
    y = convolution(block["convolution"], x, stride, padding, recipe.groups)
    return ACTIVATIONS[recipe.activation](y)


def _recurrent_params(new: Values, recipe: Recipe) -> dict[str, Any]:
    return _with_norm(new, recipe, {"cell": cell_params(new, recipe.width, recipe.width)})


def _recurrent(block: Any, x: Any, recipe: Recipe) -> Any:
    zeros = jnp.zeros((x.shape[0], recipe.width), x.dtype)
    _, y = lax.scan(lambda carry, x: cell(block["cell"], carry, x), (zeros, zeros), x.swapaxes(0, 1))
    return y.swapaxes(0, 1)


BLOCKS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mlp": (_mlp_params, _mlp),
    "transformer": (_transformer_params, _transformer),
    "convolution": (_convolution_params, _convolution),
    "recurrent": (_recurrent_params, _recurrent),
}
