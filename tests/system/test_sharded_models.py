"""Models as people shard them by hand: values, gradients and certificates beside XLA on as many CPU devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ipuxla
from tests.replicas import small_system
from tests.systems import auto_mesh
from tests.xla import cpu_devices
from tiles.engine import certify

RNG = np.random.default_rng(5)


def normal(*shape):
    return (RNG.normal(size=shape) * shape[0] ** -0.5).astype(np.float32)


def fully_sharded(mesh):
    """A transformer's block with its optimizer: weights and their moments cut along both axes, a batch along one."""
    heads, width, vocabulary = 2, 16, 32
    weights = {
        "embedding": normal(vocabulary, width),
        "qkv": normal(width, 3 * width),
        "out": normal(width, width),
        "up": normal(width, 4 * width),
        "down": normal(4 * width, width),
        "scale": np.ones(width, np.float32),
    }
    cuts = {name: P("tp", "fsdp") for name in weights} | {
        "qkv": P("fsdp", "tp"),
        "up": P("fsdp", "tp"),
        "scale": P(),
    }

    def kept(x, *names):
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*names)))

    @jax.checkpoint
    def block(w, x):
        rows, tokens, _ = x.shape
        h = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w["scale"]
        q, k, v = jnp.split(kept(h @ w["qkv"], "fsdp").reshape(rows, tokens, heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        x = kept(x + mixed.reshape(x.shape) @ w["out"], "fsdp")
        return kept(x + jax.nn.gelu(kept(x @ w["up"], "fsdp", None, "tp")) @ w["down"], "fsdp")

    def loss(w, tokens):
        x = block(w, kept(w["embedding"][tokens[:, :-1]], "fsdp"))
        found = jax.nn.log_softmax(x @ w["embedding"].T)
        return -jnp.take_along_axis(found, tokens[:, 1:, None], -1).mean()

    def step(w, moments, tokens):
        value, gradients = jax.value_and_grad(loss)(w, tokens)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, w, moments), moments, value

    tokens = RNG.integers(0, vocabulary, (4, 9)).astype(np.int32)
    return step, (cuts, cuts, P("fsdp")), (weights, jax.tree.map(np.zeros_like, weights), tokens)


def experts(mesh):
    """A mixture of experts, one on each device: tokens go to theirs and back (``all_to_all``), gradients likewise."""
    rows, width, capacity = 32, 8, 4

    def local(x, router, up, down):
        gates = jax.nn.softmax(x @ router)
        chosen = jnp.argmax(gates, -1)
        gate = jnp.take_along_axis(gates, chosen[:, None], 1)
        hot = jax.nn.one_hot(chosen, 4, dtype=jnp.int32)
        place = ((jnp.cumsum(hot, 0) - 1) * hot).sum(-1)
        is_kept = place < capacity
        sent = (
            jnp.zeros((4, capacity, width))
            .at[chosen, jnp.where(is_kept, place, capacity)]
            .set(x, mode="drop")
        )
        arrived = lax.all_to_all(sent, "expert", 0, 0, tiled=True).reshape(-1, width)
        made = (jax.nn.relu(arrived @ up[0]) @ down[0]).reshape(4, capacity, width)
        back = lax.all_to_all(made, "expert", 0, 0, tiled=True)
        y = jnp.where(is_kept[:, None], back[chosen, jnp.minimum(place, capacity - 1)], 0) * gate
        balance = lax.pmean(hot.mean(0), "expert") * lax.pmean(gates.mean(0), "expert")
        return x + y, balance.sum()

    cut, whole = P("expert"), P()
    layer = jax.shard_map(local, mesh=mesh, in_specs=(cut, whole, cut, cut), out_specs=(cut, whole))

    def loss(w, x):
        y, balance = layer(x, *w)
        return (y**2).mean() + balance

    w = normal(width, 4) * 3, normal(4, width, 2 * width), normal(4, 2 * width, width)
    return jax.value_and_grad(loss), ((whole, cut, cut), cut), (w, normal(rows, width))


def ring_of_keys(mesh):
    """Attention over a sequence that is cut: keys and values go round (``ppermute`` in ``fori_loop``), sums are rescaled."""
    cut = P(None, "row")

    def local(q, k, v):
        own, count = lax.axis_index("row"), q.shape[1]

        def turn(number, carried):
            out, most, total, k, v = carried
            first = (own - number) % 4 * count
            scores = jnp.einsum("bqd,bkd->bqk", q, k)
            is_before = (own * count + jnp.arange(count))[:, None] >= first + jnp.arange(count)
            scores = jnp.where(is_before, scores, -1e30)
            larger = jnp.maximum(most, scores.max(-1))
            shares, scale = jnp.exp(scores - larger[..., None]), jnp.exp(most - larger)
            out = out * scale[..., None] + jnp.einsum("bqk,bkd->bqd", shares, v)
            k, v = (lax.ppermute(x, "row", [(i, (i + 1) % 4) for i in range(4)]) for x in (k, v))
            return out, larger, total * scale + shares.sum(-1), k, v

        start = lax.pcast(jnp.full(q.shape[:2], -1e30), "row", to="varying")
        out, _, total, _, _ = lax.fori_loop(
            0, 4, turn, (jnp.zeros_like(q), start, jnp.zeros_like(start), k, v)
        )
        return out / total[..., None]

    ring = jax.shard_map(local, mesh=mesh, in_specs=cut, out_specs=cut)

    def step(q, k, v, cotangent):
        out, back = jax.vjp(ring, q, k, v)
        return (out, *back(cotangent))

    return step, (cut,) * 4, tuple(normal(2, 16, 4) * 2 for _ in range(4))


def sequence_parallel(mesh):
    """A layer norm on parts of a sequence before columns and rows of weights: gathered between, scattered after."""
    cut = P("data", "model")

    def local(x, scale, up, down):
        centred = x - x.mean(-1, keepdims=True)
        h = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale
        whole = lax.all_gather(h, "model", axis=1, tiled=True)
        y = jax.nn.gelu(whole @ up) @ down
        return x + lax.psum_scatter(y, "model", scatter_dimension=1, tiled=True)

    weights = P(), P(None, "model"), P("model")
    layer = jax.shard_map(local, mesh=mesh, in_specs=(cut, *weights), out_specs=cut)

    def loss(x, *w):
        return (layer(x, *w) ** 2).mean()

    step = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))
    return (
        step,
        (cut, *weights),
        (normal(2, 8, 8), np.ones(8, np.float32), normal(8, 32), normal(32, 8)),
    )


MODELS = {
    fully_sharded: ((2, 2), ("fsdp", "tp")),
    experts: ((4,), ("expert",)),
    ring_of_keys: ((4,), ("row",)),
    sequence_parallel: ((2, 2), ("data", "model")),
}


def on(mesh, cuts):
    return jax.tree.map(lambda cut: NamedSharding(mesh, cut), cuts, is_leaf=lambda x: isinstance(x, P))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_models_sharded_by_hand_give_what_xla_gives(model):
    shape, names = MODELS[model]
    devices = Mesh(np.array(cpu_devices(4)).reshape(shape), names)
    step, cuts, arguments = model(mesh := auto_mesh(shape, names))
    native, _, _ = model(devices)
    wanted = jax.tree.leaves(jax.jit(native, in_shardings=on(devices, cuts))(*arguments))
    compiled = (
        ipuxla.jit(step, target=small_system(), in_shardings=on(mesh, cuts))
        .lower(*arguments)
        .compile(engine="fast")
    )
    assert compiled.executable.replicas.count == 4 and certify(compiled.executable).exchanges
    for value, other in zip(jax.tree.leaves(compiled(*arguments)), wanted, strict=True):
        np.testing.assert_allclose(value, other, rtol=2e-4, atol=2e-6)
