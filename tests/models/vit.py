"""ViT-B/16: a transformer encoder on patches of an image."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.base import Model, Values, register
from tests.models.layers import (
    attention,
    attention_params,
    convolution,
    convolution_params,
    dense,
    dense_params,
    layer_norm,
    norm_params,
    scope,
)


def block(p: Any, x: Any) -> Any:
    """Return tokens after attention and an MLP, each on normalized tokens and added to them."""
    with scope("LayerNorm_0"):
        y = layer_norm(p["LayerNorm_0"], x)
    with scope("MultiHeadDotProductAttention_1"):
        x = x + attention(p["attention"], y)
    with scope("LayerNorm_2"):
        y = layer_norm(p["LayerNorm_2"], x)
    with scope("MlpBlock_3/Dense_0"):
        y = jax.nn.gelu(dense(p["Dense_0"], y))
    with scope("MlpBlock_3/Dense_1"):
        return x + dense(p["Dense_1"], y)


@register("vit-b16-inference")
def _inference(published: bool) -> Model:
    layers, features, heads, hidden = (12, 768, 12, 3072) if published else (1, 8, 2, 12)
    batch, side, patch, classes = (2, 224, 16, 1000) if published else (2, 8, 4, 3)
    tokens = (side // patch) ** 2 + 1
    new = Values(published, "float16")

    def block_params() -> dict[str, Any]:
        return {
            "LayerNorm_0": norm_params(new, features),
            "attention": attention_params(new, features, heads),
            "LayerNorm_2": norm_params(new, features),
            "Dense_0": dense_params(new, features, hidden),
            "Dense_1": dense_params(new, hidden, features),
        }

    params: dict[str, Any] = {f"encoderblock_{i}": block_params() for i in range(layers)}
    params |= {
        "embedding": convolution_params(new, patch, 3, features, bias=True),
        "cls": new.normal(1, 1, features),
        "posembed_input": new.normal(1, tokens, features, scale=0.1),
        "encoder_norm": norm_params(new, features),
        "head": dense_params(new, features, classes),
    }

    def infer(p: Any, images: Any) -> Any:
        with scope("VisionTransformer"):
            with scope("embedding"):
                x = convolution(p["embedding"], images, patch, "VALID")
            n, rows, columns, channels = x.shape
            x = jnp.reshape(x, [n, rows * columns, channels])
            x = jnp.concatenate([jnp.tile(p["cls"], [n, 1, 1]), x], axis=1) + p["posembed_input"]
            for i in range(layers):
                with scope(f"encoderblock_{i}"):
                    x = block(p[f"encoderblock_{i}"], x)
            with scope("encoder_norm"):
                x = layer_norm(p["encoder_norm"], x)
            with scope("head"):
                return dense(p["head"], x[:, 0])

    return Model(infer, (params, new.normal(batch, side, side, 3)), batch, "images", target="bow")
