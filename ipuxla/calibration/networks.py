"""Networks that others have run on an IPU, whole or in part: transformers, and convolutional ones."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from ipuxla._jax_compat import Function, Tree
from ipuxla.calibration import conformer, convnets, swin
from ipuxla.calibration.figures import ALL, Figure
from ipuxla.calibration.kernels import convolved, layer_norm
from ipuxla.calibration.parameters import NotModelled
from ipuxla.calibration.records import Record
from ipuxla.calibration.stencils import one_ipu
from ipuxla.calibration.work import Work, compiled, machine, shaped, work_of
from tiles.compiler import Executable
from tiles.report import memory_analysis
from tiles.target import Target

FP8 = "float8_e4m3fnuz"


@dataclass(frozen=True)
class Encoder:
    """Sizes of a transformer encoder.

    Args:
      layers: how many.
      tokens: of one sequence.
      width: of a token.
      heads: of attention.
      hidden: width of the MLP.
      batch: sequences.
      dtype: of what is multiplied: float32, as all else is then, or float16 or an 8-bit float, and all else is float16.
      shares_layers: whether all layers have the same parameters.
      patch: side of the patches of a vision tower, with its embedding and head; 0 for the layers alone.
    """

    layers: int
    tokens: int
    width: int
    heads: int
    hidden: int
    batch: int = 1
    dtype: str = "float16"
    shares_layers: bool = False
    patch: int = 0

    @property
    def rest(self) -> str:
        """Dtype of what is not multiplied."""
        return "float32" if self.dtype == "float32" else "float16"

    @property
    def given(self) -> jax.ShapeDtypeStruct:
        """Tokens ``[batch, tokens, width]``."""
        return shaped((self.batch, self.tokens, self.width), self.rest)

    def blocks(self) -> list[tuple[Tree, Function]]:
        """Return parameters and function of each layer."""
        return [(parameters(self), partial(layer, sizes=self))] * self.layers


Network = Encoder | convnets.ResNet | convnets.EfficientNet | swin.Swin | conformer.Conformer

BATCHES = (1, 4, 16)
"""Sequences at once among which the best is taken, where a publication says that it did so."""
PUBLISHED = {
    "siglip so400m": Encoder(27, 729, 1152, 16, 4304),
    "siglip vit": Encoder(1, 729, 1152, 16, 4304),
    "vit-small": Encoder(12, 197, 384, 6, 1536),
    "vit-large": Encoder(24, 197, 1024, 16, 4096),
    "vit": Encoder(12, 197, 768, 12, 3072),
    "gpt2-medium": Encoder(24, 1024, 1024, 16, 4096),
    "gpt2-large": Encoder(36, 1024, 1280, 20, 5120),
    "gpt2": Encoder(12, 1024, 768, 12, 3072),
    "distilbert": Encoder(6, 384, 768, 12, 3072),
    "albert": Encoder(12, 384, 768, 12, 3072, shares_layers=True),
    "bert-base": Encoder(12, 384, 768, 12, 3072),
    "bert-large": Encoder(24, 384, 1024, 16, 4096),
    "roberta": Encoder(12, 384, 768, 12, 3072),
    "deberta": Encoder(12, 384, 768, 12, 3072),
}
"""Sizes as their authors publish them, and the length that the benchmarks of IPUs run them at.

Of vision transformers those on patches of 16 x 16 of images of 224 x 224; a GPT's masks are left out.
"""
SIGLIP_PATCH = 14
"""Side of a patch of SigLIP's So400m/14 tower: 27 x 27 of them."""


def multiplied(x: jax.Array, w: jax.Array) -> jax.Array:
    """Return a product of tokens brought to the weights' dtype, in float16 unless that is float32."""
    wide = jnp.float32 if w.dtype == jnp.float32 else jnp.float16
    return jnp.matmul(x.astype(w.dtype), w, preferred_element_type=wide)


def attention(x: jax.Array, p: dict[str, jax.Array], sizes: Encoder) -> jax.Array:
    """Return tokens ``[batch, tokens, width]`` mixed by attention of several heads; scores are products of halves."""
    batch, tokens, width = x.shape
    qkv = multiplied(x, p["qkv"])
    each = width // sizes.heads
    q, k, v = (a.reshape(batch, tokens, sizes.heads, each).swapaxes(1, 2) for a in jnp.split(qkv, 3, -1))
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k) * jnp.asarray(each**-0.5, x.dtype)
    mixed = multiplied(jax.nn.softmax(scores, axis=-1), v.astype(p["qkv"].dtype))
    return multiplied(mixed.swapaxes(1, 2).reshape(batch, tokens, width), p["out"])


def mlp(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
    """Return tokens after the MLP."""
    return multiplied(jax.nn.gelu(multiplied(x, p["up"]), approximate=True), p["down"])


def layer(x: jax.Array, p: dict[str, jax.Array], sizes: Encoder) -> jax.Array:
    """Return tokens after a layer: attention, then the MLP, each of normalized tokens and added to them."""
    x = x + attention(layer_norm(x, p["scale1"], p["shift1"]), p, sizes)
    return x + mlp(layer_norm(x, p["scale2"], p["shift2"]), p)


def parameters(sizes: Encoder) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the parameters of a layer, as shapes."""
    width, hidden = sizes.width, sizes.hidden
    vectors = {name: shaped((width,), sizes.rest) for name in ("scale1", "shift1", "scale2", "shift2")}
    matrices = {
        "qkv": (width, 3 * width),
        "out": (width, width),
        "up": (width, hidden),
        "down": (hidden, width),
    }
    return vectors | {name: shaped(shape, sizes.dtype) for name, shape in matrices.items()}


def encoder(sizes: Encoder, target: Target) -> Executable:
    """Return the program of an encoder: its layers, and the rest of a vision tower if it is one."""
    each = parameters(sizes)
    own = 1 if sizes.shares_layers else sizes.layers
    if sizes.patch:
        side = sizes.patch * math.isqrt(sizes.tokens)
        images = shaped((sizes.batch, side, side, 3), "float16")
        return compiled(partial(tower, sizes), target, images, [each] * own, tower_parameters(sizes))
    return compiled(partial(run_layers, sizes), target, sizes.given, [each] * own)


def run_layers(sizes: Encoder, x: jax.Array, layers: Sequence[dict[str, jax.Array]]) -> jax.Array:
    """Return tokens after all layers."""
    for number in range(sizes.layers):
        x = layer(x, layers[0 if sizes.shares_layers else number], sizes)
    return x


def tower(
    sizes: Encoder, images: jax.Array, layers: Sequence[dict[str, jax.Array]], p: dict[str, jax.Array]
) -> jax.Array:
    """Return an embedding ``[batch, width]`` of images: patches, layers, and a head that pools by attention.

    Source: Zhai et al., "Scaling Vision Transformers", arXiv:2106.04560 (the head, MAP); SigLIP, arXiv:2303.15343.
    """
    batch, width, each = sizes.batch, sizes.width, sizes.width // sizes.heads
    patches = convolved(images, p["patches"], sizes.patch, padding="VALID")
    x = patches.reshape(batch, sizes.tokens, width) + p["positions"]
    x = layer_norm(run_layers(sizes, x, layers), p["scale1"], p["shift1"])
    k, v = jnp.split(multiplied(x, p["keys_values"]), 2, -1)
    k, v = (a.reshape(batch, sizes.tokens, sizes.heads, each) for a in (k, v))
    q = multiplied(p["probe"], p["query"]).reshape(sizes.heads, each)
    shares = jax.nn.softmax(jnp.einsum("hd,bthd->bht", q, k) * jnp.asarray(each**-0.5, x.dtype), axis=-1)
    pooled = multiplied(jnp.einsum("bht,bthd->bhd", shares, v).reshape(batch, width), p["out"])
    return pooled + mlp(layer_norm(pooled, p["scale2"], p["shift2"]), p)


def tower_parameters(sizes: Encoder) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the parameters of a vision tower beside those of its layers, as shapes."""
    width, found = sizes.width, parameters(sizes)
    del found["qkv"]
    halves = {
        "patches": (sizes.patch, sizes.patch, 3, width),
        "positions": (sizes.tokens, width),
        "probe": (1, width),
    }
    matrices = {"query": (width, width), "keys_values": (width, 2 * width)}
    found |= {name: shaped(shape, "float16") for name, shape in halves.items()}
    return found | {name: shaped(shape, sizes.dtype) for name, shape in matrices.items()}


def sizes_of(record: Record) -> Encoder:
    """Return the sizes that a record states, and those of the network that it names.

    Raises:
      NotModelled: it names none that is known and does not state them all.
    """
    p, words = record.params, f"{record.params.text('model')} {record.what}".lower()
    known = next((sizes for name, sizes in PUBLISHED.items() if re.search(rf"\b{name}\b", words)), None)
    stated = {
        field: p.integer(name)
        for field, name in (
            ("layers", "layers"),
            ("tokens", "tokens"),
            ("width", "width"),
            ("heads", "heads"),
            ("hidden", "hidden"),
            ("batch", "batch"),
        )
        if p.has(name)
    }
    missing = [size for size in ("layers", "tokens", "width", "heads", "hidden") if size not in stated]
    if known is None and missing:
        named = p.text("model") or record.what
        lacks = "sizes" if len(missing) == 5 else " and ".join(missing)
        raise NotModelled(f"the {lacks} of {named!r} are neither stated nor known")
    if "27 layers" in words:
        stated.setdefault("layers", 27)
    if length := re.search(r"\bseq(?:uence)?(?: length)?[ =:]+(\d+)", words):
        stated.setdefault("tokens", int(length[1]))
    is_narrow = "fp8" in words.replace(" ", "") or p.text("dtype") in ("f8", "fp8")
    dtype = FP8 if is_narrow else "float16"
    sizes = [
        stated.get(field, getattr(known, field, 1))
        for field in ("layers", "tokens", "width", "heads", "hidden")
    ]
    shares = known is not None and known.shares_layers
    patch = SIGLIP_PATCH if "siglip" in words and re.search(r"vision tower|map head", words) else 0
    return Encoder(*sizes, batch=stated.get("batch", 1), dtype=dtype, shares_layers=shares, patch=patch)


def network_of(record: Record) -> Network:
    """Return the network that a record names or whose sizes it states, of halves unless it states another type.

    Raises:
      NotModelled: as of ``sizes_of``.
    """
    p, words = record.params, f"{record.params.text('model')} {record.what}".lower()
    found = convnets.named(words) or swin.named(words) or conformer.named(words)
    if found is not None:
        return replace(found, batch=p.integer("batch", 1), dtype=p.dtype(default="float16"))
    sizes = sizes_of(record)
    return replace(sizes, dtype="float32") if p.dtype(default="float16") == "float32" else sizes


def inference(record: Record) -> Work:
    """Return the forward pass of a network, or of a block of one."""
    one_ipu(record)
    p, words, target = record.params, record.what.lower(), machine(record)
    if "mlp block" in words:
        dtype = p.dtype()
        sizes = Encoder(1, p.integer("m"), p.integer("k"), 1, p.integer("hidden"), dtype=dtype)
        each = {name: parameters(sizes)[name] for name in ("up", "down")}
        executable = compiled(mlp, target, shaped((sizes.tokens, sizes.width), "float16"), each)
        return work_of(record, executable, "MLP block")
    if "attention" in words and p.has("tokens", "width", "heads"):
        dtype = p.dtype()
        sizes = Encoder(1, p.integer("tokens"), p.integer("width"), p.integer("heads"), 1, dtype=dtype)
        each = {name: parameters(sizes)[name] for name in ("qkv", "out")}
        x = shaped((1, sizes.tokens, sizes.width), "float16")
        executable = compiled(lambda x, each: attention(x, each, sizes), target, x, each)
        return work_of(record, executable, "attention block")
    network = network_of(record)
    if "best batch" in words:
        runs = [_forward(record, replace(network, batch=batch), target) for batch in BATCHES]
        return max(runs, key=_rate)
    return _forward(record, network, target)


def _forward(record: Record, network: Network, target: Target) -> Work:
    if isinstance(network, Encoder):
        executable, built = encoder(network, target), f"{network.layers} layers"
    else:
        parts = network.blocks()
        executable = compiled(
            partial(run_blocks, [f for _, f in parts]), target, [p for p, _ in parts], network.given
        )
        built = f"{len(parts)} blocks"
    return work_of(record, executable, f"{built}, batch {network.batch}", (ALL,), items=float(network.batch))


def run_blocks(functions: Sequence[Function], given: Sequence[Tree], x: jax.Array) -> jax.Array:
    """Return what blocks, one after another, make of an array; ``given`` are their parameters."""
    for function, parameters in zip(functions, given, strict=True):
        x = function(x, parameters)
    return x


def _rate(work: Work) -> float:
    return (work.items or 0) / work.figure.cycles


def memory(record: Record) -> Work:
    """Return the mean bytes of a tile that a network's program allocates."""
    target = machine(record)
    executable = encoder(sizes_of(record), target)
    total = float(memory_analysis(executable)["total_bytes"]) / target.num_tiles
    return Work(
        Figure(total, 0.8 * total, 1.3 * total), target.clock_hz, "layers of the network", is_plain=True
    )
