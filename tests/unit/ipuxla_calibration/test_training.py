"""Training steps of whole systems: what an IPU computes for some samples, and how updates follow from it."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ipuxla.calibration import Row, conformer, convnets, predict, read_records, swin
from ipuxla.calibration.conformer import Conformer
from ipuxla.calibration.convnets import ResNet
from ipuxla.calibration.networks import Encoder, run_blocks
from ipuxla.calibration.programs import FAMILIES
from ipuxla.calibration.training import WHOLE, Stage

SMALL = {"layers": 2, "seq": 8, "width": 16, "heads": 2, "mlp": 32}


def _row(what: str = "a small encoder's training", **changes: object) -> Row:
    params = SMALL | {"ipus": 1, "micro_batch": 2} | changes
    entry = {"id": "a", "family": "model_training", "what": what, "target": "bow", "metric": "throughput"}
    stated = {name: value for name, value in params.items() if value}
    entry |= {"value": 1.0, "unit": "items/s", "source": "a test", "evidence": "hardware", "params": stated}
    records, bad = read_records(json.dumps([entry]), frozenset(FAMILIES))
    assert not bad
    row = predict(records[0])
    assert isinstance(row, Row)
    return row


def _rate(**changes: object) -> float:
    row = _row(**changes)
    assert row.predicted is not None and row.low is not None and row.low < row.predicted, row.built
    return row.predicted


@pytest.mark.parametrize("is_pipelined", [False, True])
@pytest.mark.parametrize(
    "network",
    [
        Encoder(2, 5, 8, 2, 12, batch=3, dtype="float32"),
        ResNet((1,), batch=2, dtype="float32", width=2, side=8, classes=3),
        Conformer(2, "float32", frames=15, mels=11, width=4, heads=2, hidden=6, taps=3, layers=1),
    ],
)
def test_a_stage_adds_its_gradients_to_their_sums_and_hands_on_those_of_its_samples(network, is_pipelined):
    """The witness is jax.grad of the whole network's results, weighted by what comes back from the next stage."""
    step, shapes = Stage(network, (0, WHOLE), is_pipelined).step()
    numbers = np.random.default_rng(3)
    made = jax.tree.map(lambda s: numbers.normal(size=s.shape).astype(s.dtype), shapes)
    parameters, sums, x, up = made
    functions = [function for _, function in network.blocks()]

    def weighted(parameters, x):
        return jnp.vdot(run_blocks(functions, parameters, x), up)

    gradients, down = jax.jit(jax.grad(weighted, argnums=(0, 1)))(parameters, x)
    found, handed = jax.jit(step)(parameters, sums, x, up)
    jax.tree.map(
        lambda a, s, g: np.testing.assert_allclose(a, np.asarray(s) + np.asarray(g), rtol=2e-4, atol=2e-3),
        found,
        sums,
        gradients,
    )
    if is_pipelined:
        np.testing.assert_allclose(handed, down, rtol=2e-4, atol=2e-3)
    else:
        assert handed is None


@pytest.mark.parametrize(
    ("name", "parameters", "multiplications"),
    [  # millions and thousand millions, as torchvision and timm state them
        ("resnet-50", 25.56, 4.09),
        ("resnet101", 44.55, 7.80),
        ("efficientnet-b0", 5.29, 0.39),
        ("efficientnet-b4", 19.34, 4.39),
        ("swin-tiny", 28.29, 4.49),
    ],
)
def test_networks_have_the_parameters_and_the_arithmetic_that_are_published(
    name, parameters, multiplications
):
    network = convnets.named(name) or swin.named(name) or conformer.named(name)
    assert network is not None
    given, functions = zip(*network.blocks(), strict=True)
    found = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(given))
    lowered = jax.jit(lambda p, x: run_blocks(functions, p, x)).lower(given, network.given)
    counted = lowered.cost_analysis()["flops"] / 2e9
    assert found / 1e6 == pytest.approx(parameters, rel=0.01)
    assert counted == pytest.approx(multiplications, rel=0.1)


def test_shifted_windows_are_those_of_the_definition():
    """Token by token: which others it attends to, from the regions of Swin's figure 4; small numbers of heads and channels."""
    side, shift, width = 2 * swin.WINDOW, swin.WINDOW // 2, 4
    numbers = np.random.default_rng(0)
    x = jnp.asarray(numbers.normal(size=(1, side, side, width)), jnp.float32)
    qkv, out = (jnp.asarray(numbers.normal(size=(width, n * width)), jnp.float32) for n in (3, 1))
    bias = jnp.zeros((1, swin.WINDOW**2, swin.WINDOW**2))
    found = jax.jit(
        lambda *p: swin._attended(x, dict(zip(("qkv", "bias", "out"), p, strict=True)), 1, shift)
    )(qkv, bias, out)

    def region(n: int) -> int:
        return (n >= shift) + (
            n >= shift + swin.WINDOW
        )  # windows begin at ``shift``; before the first lies the rest

    places = [(i, j) for i in range(side) for j in range(side)]
    tokens = np.asarray(x[0]).reshape(-1, width)
    q, k, v = np.split(tokens @ np.asarray(qkv), 3, 1)
    alike = np.array(
        [[region(a) == region(c) and region(b) == region(d) for c, d in places] for a, b in places]
    )
    scores = np.where(alike, q @ k.T / 2, -np.inf)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    wanted = (shares / shares.sum(1, keepdims=True)) @ v @ np.asarray(out)
    np.testing.assert_allclose(np.asarray(found[0]).reshape(-1, width), wanted, rtol=1e-3, atol=1e-3)


def test_replicas_multiply_the_rate_but_for_the_sum_of_their_gradients():
    alone = _rate()
    often, rarely = (_rate(ipus=4, replicas=4, global_batch=8 * rounds) for rounds in (1, 1000))
    assert often < rarely < 4 * alone and rarely == pytest.approx(4 * alone, rel=0.02)


def test_a_batch_of_several_ipus_is_that_of_an_update_unless_it_is_said_to_go_through_at_once():
    update = {"ipus": 2, "replicas": 2}
    stated = _rate(**update, micro_batch=1, global_batch=8)
    assert _rate(**update, micro_batch=0, batch=8) == stated  # one at a time where nothing is known
    assert "not stated" in _row(**update, micro_batch=1, batch=8).built


@pytest.mark.parametrize(
    ("what", "layers", "built"),
    [
        ("ViT pre-training", 12, "4 x 4 IPUs, 8 samples at once"),
        ("ViT fine-tuning", 13, "16 x 1 IPUs, 1 samples at once"),
        ("BERT-Large phase 2", 24, "4 x 4 IPUs, 2 samples at once"),
    ],
)
def test_pipelines_are_those_of_their_authors_for_networks_of_that_size(what, layers, built):
    row = _row(what=what, layers=layers, ipus=16, global_batch=64, micro_batch=0)
    assert row.built.startswith(built)


def test_a_pipeline_is_full_but_for_its_first_and_last_samples():
    """Two stages of a layer each, a sample at a time: n of them take n + 1 times what a stage takes, besides the update."""
    update = {"ipus": 2, "replicas": 1, "micro_batch": 1}
    seconds = {n: n / _rate(**update, global_batch=n) for n in (1, 2, 4)}
    each = seconds[2] - seconds[1]
    assert seconds[4] - seconds[2] == pytest.approx(2 * each) and seconds[1] == pytest.approx(2 * each)
    assert "1 x 2 IPUs, 1 samples at once, 4 times an update" in _row(**update, global_batch=4).built


def test_iterations_and_packs_are_counted_as_publications_do():
    update = {"ipus": 2, "replicas": 2, "global_batch": 12, "seq": 512}
    sequences = _rate(**update)
    assert _rate(what="packed sequences of a small encoder", **update) == pytest.approx(2 * sequences)


@pytest.mark.parametrize(
    ("what", "changes", "reason"),
    [
        ("a small encoder", {"ipus": 4}, "how many samples are between two updates"),
        (
            "a small encoder",
            {"ipus": 6, "replicas": 4, "global_batch": 8, "layers": 0},
            "neither stated nor known",
        ),
        ("BERT-Large", {"ipus": 6, "global_batch": 12}, "6 IPUs are no whole number of replicas of 4"),
        ("ResNet-50", {"ipus": 4, "replicas": 2, "global_batch": 12}, "how its layers are split over 2 IPUs"),
    ],
)
def test_what_no_source_states_is_not_modelled(what, changes, reason):
    row = _row(what=what, **changes)
    assert row.predicted is None and reason in row.built
