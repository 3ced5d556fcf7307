"""The models against the same formulas in NumPy, float64."""

from __future__ import annotations

import jax
import numpy as np

from ipuxla.experiments.models import MODELS, apply_cnn, apply_mlp, cross_entropy, init_cnn, init_mlp


def _numpy_logits(params, images):
    values = np.asarray(images, np.float64)
    for position, layer in enumerate(params):
        values = values @ np.asarray(layer["w"], np.float64) + np.asarray(layer["b"], np.float64)
        if position < len(params) - 1:
            values = np.maximum(values, 0)
    return values


def _example():
    params = init_mlp(jax.random.key(3), (6, 5, 4))
    rng = np.random.default_rng(0)
    return params, rng.random((7, 6), np.float32), rng.integers(0, 4, 7, np.int32)


def test_init_has_the_sizes_and_spread_of_he_normal():
    params = init_mlp(jax.random.key(0), (400, 300, 10))
    assert [layer["w"].shape for layer in params] == [(400, 300), (300, 10)]
    assert [layer["b"].shape for layer in params] == [(300,), (10,)]
    assert abs(float(np.std(params[0]["w"])) / np.sqrt(2 / 400) - 1) < 0.02
    assert all(not np.any(layer["b"]) for layer in params)


def test_logits_are_those_of_numpy():
    params, images, _ = _example()
    np.testing.assert_allclose(apply_mlp(params, images), _numpy_logits(params, images), rtol=1e-5, atol=1e-5)


def test_cross_entropy_is_the_mean_negative_log_probability_of_the_labels():
    params, images, labels = _example()
    logits = _numpy_logits(params, images)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.mean(np.log(probabilities[np.arange(7), labels]))
    np.testing.assert_allclose(MODELS["mlp"].loss(params, images, labels), expected, rtol=1e-5)
    np.testing.assert_allclose(MODELS["mlp"].predict(params, images), probabilities, rtol=1e-5, atol=1e-6)


def test_cross_entropy_stays_finite_for_large_logits():
    logits = np.array([[1000.0, 0.0], [0.0, -1000.0]], np.float32)
    np.testing.assert_allclose(cross_entropy(logits, np.array([1, 1])), 1000.0)


def _numpy_cnn(params, images):
    values = np.asarray(images, np.float64).reshape(-1, 8, 8, 1)
    for layer in params[:2]:
        kernel, padded = np.asarray(layer["w"], np.float64), np.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)))
        rows, columns = values.shape[1:3]
        summed = sum(
            padded[:, i : i + rows, j : j + columns] @ kernel[i, j] for i in range(3) for j in range(3)
        )
        values = np.maximum(summed + np.asarray(layer["b"], np.float64), 0)
        values = values.reshape(len(values), rows // 2, 2, columns // 2, 2, -1).max(axis=(2, 4))
    return _numpy_logits(params[2:], values.reshape(len(values), -1))


def test_convolutional_logits_are_those_of_numpy():
    params = init_cnn(jax.random.key(3), (64, 5, 4))
    assert [layer["w"].shape for layer in params] == [(3, 3, 1, 16), (3, 3, 16, 32), (128, 5), (5, 4)]
    params = [{"w": layer["w"], "b": layer["b"] + 0.1} for layer in params]
    images = np.random.default_rng(0).random((7, 64), np.float32)
    np.testing.assert_allclose(apply_cnn(params, images), _numpy_cnn(params, images), rtol=1e-4, atol=1e-5)
