"""A layer of the SigLIP So400m vision transformer in float16, which others have measured on silicon.

729 tokens of width 1,152, 16 heads of 72, an MLP of 4,304: github.com/osmarks/ipu-stack,
docs/SDK_ONNX_PROFILE_ANALYSIS.md.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

TOKENS, WIDTH, HEADS, HIDDEN = 729, 1152, 16, 4304

Params = dict[str, jax.ShapeDtypeStruct]


def shapes() -> tuple[jax.ShapeDtypeStruct, Params]:
    """Return tokens and parameters of a layer, as shapes."""

    def halves(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float16)

    params = {f"{kind}{i}": halves(WIDTH) for kind in ("scale", "shift") for i in (1, 2)}
    params |= {"qkv": halves(WIDTH, 3 * WIDTH), "qkv_bias": halves(3 * WIDTH)}
    params |= {"out": halves(WIDTH, WIDTH), "out_bias": halves(WIDTH)}
    params |= {"up": halves(WIDTH, HIDDEN), "up_bias": halves(HIDDEN)}
    params |= {"down": halves(HIDDEN, WIDTH), "down_bias": halves(WIDTH)}
    return halves(TOKENS, WIDTH), params


def mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Return the layer's MLP without biases."""
    return jax.nn.gelu(x @ up, approximate=True) @ down


def layer(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
    """Return the tokens after a layer: attention, then the MLP, each on normalized tokens and added to them."""
    qkv = _normalized(x, p["scale1"], p["shift1"]) @ p["qkv"] + p["qkv_bias"]
    q, k, v = (a.reshape(TOKENS, HEADS, -1).transpose(1, 0, 2) for a in jnp.split(qkv, 3, -1))
    scores = jnp.einsum("htd,hsd->hts", q, k) * jnp.asarray(q.shape[-1] ** -0.5, x.dtype)
    mixed = jnp.einsum("hts,hsd->htd", jax.nn.softmax(scores, axis=-1), v)
    x = x + mixed.transpose(1, 0, 2).reshape(TOKENS, WIDTH) @ p["out"] + p["out_bias"]
    hidden = _normalized(x, p["scale2"], p["shift2"]) @ p["up"] + p["up_bias"]
    return x + jax.nn.gelu(hidden, approximate=True) @ p["down"] + p["down_bias"]


def _normalized(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(wide.var(-1, keepdims=True) + 1e-6)
    return normal.astype(x.dtype) * scale + shift
