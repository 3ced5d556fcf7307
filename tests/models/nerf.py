"""A neural radiance field: an MLP of positions and directions, summed along rays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.base import Model, Values, register
from tests.models.layers import dense, dense_params, scope
from tests.models.optimizers import adam, training_step


def positional_encoding(x: Any, octaves: int) -> Any:
    """Return coordinates, then sines and cosines of them at frequencies an octave apart."""
    scales = 2.0 ** jnp.arange(octaves)
    angles = (x[..., None, :] * scales[:, None]).reshape(*x.shape[:-1], -1)
    return jnp.concatenate([x, jnp.sin(jnp.concatenate([angles, angles + 0.5 * jnp.pi], axis=-1))], axis=-1)


@register("nerf-mlp")
def _step(published: bool) -> Model:
    rays, samples, layers, width, skip = (64, 64, 8, 256, 4) if published else (2, 3, 3, 8, 1)
    of_points, of_views = (10, 4) if published else (2, 1)
    new = Values(published)
    encoded, viewed = 3 + 6 * of_points, 3 + 6 * of_views
    params: dict[str, Any] = {}
    for i in range(layers):
        inputs = encoded if i == 0 else width + encoded if i == skip + 1 else width
        params[f"Dense_{i}"] = dense_params(new, inputs, width)
    params |= {
        "density": dense_params(new, width, 1),
        "bottleneck": dense_params(new, width, width),
        "view": dense_params(new, width + viewed, width // 2),
        "colour": dense_params(new, width // 2, 3),
    }

    def field(p: Any, points: Any, views: Any) -> tuple[Any, Any]:
        """Return colours and densities of points ``[rays, samples, 3]``."""
        inputs = positional_encoding(points, of_points)
        x = inputs
        for i in range(layers):
            with scope(f"Dense_{i}"):
                x = jax.nn.relu(dense(p[f"Dense_{i}"], x))
            if i == skip:
                x = jnp.concatenate([x, inputs], axis=-1)
        density = jax.nn.relu(dense(p["density"], x))[..., 0]
        views = jnp.broadcast_to(positional_encoding(views, of_views)[:, None, :], (*x.shape[:-1], viewed))
        x = jnp.concatenate([dense(p["bottleneck"], x), views], axis=-1)
        return jax.nn.sigmoid(dense(p["colour"], jax.nn.relu(dense(p["view"], x)))), density

    def loss(p: Any, origins: Any, directions: Any, depths: Any, pixels: Any) -> Any:
        with scope("NeRF"):
            points = origins[:, None, :] + depths[..., None] * directions[:, None, :]
            colours, density = field(p, points, directions)
            last = jnp.full_like(depths[:, :1], 1e3)
            thickness = density * jnp.concatenate([jnp.diff(depths), last], axis=-1)
            before = jnp.concatenate([jnp.zeros_like(last), jnp.cumsum(thickness[:, :-1], axis=-1)], axis=-1)
            weights = (1.0 - jnp.exp(-thickness)) * jnp.exp(-before)
            return jnp.mean((jnp.sum(weights[..., None] * colours, axis=-2) - pixels) ** 2)

    optimizer = adam(5e-4)
    state = new.like(jax.eval_shape(optimizer.init, params))
    depths = new.normal(rays, samples)
    if not published:
        depths.sort(axis=1)
    ends = [new.normal(rays, 3) for _ in range(2)]
    arguments = params, state, *ends, depths, new.normal(rays, 3)
    return Model(training_step(loss, optimizer), arguments, rays * samples, "samples", donated=(0, 1))
