"""Ordinary networks as people write them: small, for every engine, and at published size, to be compiled whole.

They are plain JAX, but in the operations that flax's linen modules and optax's optimizers emit, under the names that
flax gives to scopes. A model at published size takes ``jax.ShapeDtypeStruct``: its weights are never made.
"""

from tests.models import bert, densenet, gpt, graph, lstm, mobilenet, nerf, resnet, unet, vit
from tests.models.base import MAKERS, SIZES, Goals, Model, model

__all__ = ["MAKERS", "SIZES", "Goals", "Model", "model"]

assert (
    bert and densenet and gpt and graph and lstm and mobilenet and nerf and resnet and unet and vit
)  # for their models
