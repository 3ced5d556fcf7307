"""The GPT of the models trains: fifty steps beside JAX's, and an optimizer that exchanges no more than scalars."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

import ipuxla
from tests.models import model
from tests.models.gpt import Size, step_of
from tests.models.base import Values
from tiles.compiler import Executable, step_costs
from tiles.compiler.steps import CopyStep, ExecuteStep

STEPS = 50
