"""Optimizers against their published recurrences, written out in NumPy for a few steps."""

from __future__ import annotations

import numpy as np

from ipuxla.experiments.optimizers import adam, momentum, sgd

GRADS = np.array([[0.5, -2.0], [0.25, 1.0], [-1.0, 3.0], [0.1, 0.0]], np.float32)
START = np.array([1.0, -1.0], np.float32)


def _run(optimizer):
    params = {"w": START}
    state = optimizer.init(params)
    for grad in GRADS:
        params, state = optimizer.update({"w": grad}, state, params)
    return params["w"]


def test_sgd_steps_against_the_gradient():
    np.testing.assert_allclose(_run(sgd(0.1)), START - 0.1 * GRADS.sum(axis=0), rtol=1e-6)


def test_momentum_sums_decayed_gradients():
    weights = np.array([[0.9 ** (t - s) if s <= t else 0.0 for s in range(4)] for t in range(4)])
    np.testing.assert_allclose(_run(momentum(0.1)), START - 0.1 * (weights @ GRADS).sum(axis=0), rtol=1e-6)


def test_adam_follows_the_paper():
    m, v, w = np.zeros(2), np.zeros(2), START.astype(np.float64)
    for t, g in enumerate(GRADS.astype(np.float64), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(_run(adam(0.01)), w, rtol=1e-5)


def test_first_adam_step_has_the_size_of_the_learning_rate():
    params, _ = adam(0.01).update({"w": GRADS[0]}, adam(0.01).init({"w": START}), {"w": START})
    np.testing.assert_allclose(START - params["w"], 0.01 * np.sign(GRADS[0]), rtol=1e-4)
