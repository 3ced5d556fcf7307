"""Models as people shard them by hand: values, gradients and certificates beside XLA on as many CPU devices."""

import jax
import jax.flatten_util
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


def heads_by_turns(mesh):
    """Attention over a sequence that is cut, its heads cut instead in between (``all_to_all``, as DeepSpeed-Ulysses)."""

    def attend(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    def local(w, x):
        q, k, v = ((x @ w[name]).reshape(*x.shape[:2], 4, 4) for name in ("q", "k", "v"))
        q, k, v = (lax.all_to_all(a, "row", split_axis=2, concat_axis=1, tiled=True) for a in (q, k, v))
        mixed = lax.all_to_all(attend(q, k, v), "row", split_axis=1, concat_axis=2, tiled=True)
        return lax.pmean(((x + mixed.reshape(x.shape) @ w["out"]) ** 2).mean(), "row")

    weights = {name: normal(16, 16) for name in ("q", "k", "v", "out")}
    cuts = P(), P(None, "row")
    loss = jax.shard_map(local, mesh=mesh, in_specs=cuts, out_specs=P())
    return jax.value_and_grad(loss, argnums=(0, 1)), cuts, (weights, normal(2, 8, 16) * 2)


def pipeline(mesh):
    """Stages of layers, one on each device; micro-batches go from one to the next (``ppermute`` in ``scan``)."""
    batches, stages = 3, 4

    def stage(w, h):
        return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, w)[0]

    def local(w, x, y):
        place, w = lax.axis_index("row"), w[0]

        def tick(carried, t):
            h, out = carried
            h = stage(w, jnp.where(place == 0, x[jnp.minimum(t, batches - 1)], h))
            done = t - (stages - 1)
            out = lax.cond(
                done >= 0,
                lambda o: lax.dynamic_update_index_in_dim(o, h, jnp.maximum(done, 0), 0),
                lambda o: o,
                out,
            )
            return (lax.ppermute(h, "row", [(i, i + 1) for i in range(stages - 1)]), out), None

        start = lax.pcast((jnp.zeros_like(x[0]), jnp.zeros_like(x)), ("row",), to="varying")
        (_, out), _ = lax.scan(tick, start, jnp.arange(batches + stages - 1))
        return lax.psum(jnp.where(place == stages - 1, ((out - y) ** 2).mean(), 0), "row")

    cuts = P("row"), P(), P()
    loss = jax.shard_map(local, mesh=mesh, in_specs=cuts, out_specs=P())
    weights = normal(stages, 2, 8, 8) * 0.7
    return jax.value_and_grad(loss, argnums=(0, 1)), cuts, (weights, normal(3, 2, 8), normal(3, 2, 8))


def optimizer_in_parts(mesh):
    """Gradients scattered over the devices, each of which updates its part of all parameters, which are gathered (ZeRO)."""
    members = 4

    def loss(w, x, y):
        return ((jax.nn.gelu(x @ w["up"]) @ w["down"] - y) ** 2).mean()

    def local(w, moment, x, y):
        own = jax.tree.map(lambda a: lax.pcast(a, ("row",), to="varying"), w)
        value, gradients = jax.value_and_grad(loss)(own, x, y)
        flat, unflatten = jax.flatten_util.ravel_pytree(w)
        gradient = jax.flatten_util.ravel_pytree(gradients)[0]
        gradient = lax.psum_scatter(gradient, "row", tiled=True) / members
        part = gradient.size
        mine = lax.dynamic_slice_in_dim(flat, lax.axis_index("row") * part, part)
        moment = 0.9 * moment + gradient
        whole = lax.all_gather(mine - 0.1 * moment, "row", tiled=True)
        return unflatten(whole), moment, lax.pmean(value, "row")

    weights = {"up": normal(8, 24), "down": normal(24, 8)}
    cuts = P(), P("row"), P("row"), P("row")
    step = jax.shard_map(local, mesh=mesh, in_specs=cuts, out_specs=(P(), P("row"), P()), check_vma=False)
    return step, cuts, (weights, np.zeros(384, np.float32), normal(8, 8), normal(8, 8))


def vocabulary(mesh):
    """An embedding and logits cut along the vocabulary: lookups are summed, the softmax's parts are, too."""
    words = 8

    def local(table, head, tokens):
        first = lax.axis_index("row") * words

        def own(numbers):
            is_own = (numbers >= first) & (numbers < first + words)
            return jnp.where(is_own, numbers - first, 0), is_own

        numbers, is_own = own(tokens[:, :-1])
        x = jnp.tanh(lax.psum(jnp.where(is_own[..., None], table[numbers], 0), "row"))
        z = x @ head.T
        most = lax.pmax(lax.stop_gradient(z.max(-1)), "row")
        total = jnp.log(lax.psum(jnp.exp(z - most[..., None]).sum(-1), "row")) + most
        numbers, is_own = own(tokens[:, 1:])
        found = jnp.take_along_axis(z, numbers[..., None], -1)[..., 0]
        return (total - lax.psum(jnp.where(is_own, found, 0), "row")).mean()

    cuts = P("row"), P("row"), P()
    loss = jax.shard_map(local, mesh=mesh, in_specs=cuts, out_specs=P())
    tokens = RNG.integers(0, 4 * words, (2, 6)).astype(np.int32)
    return jax.value_and_grad(loss, argnums=(0, 1)), cuts, (normal(32, 8), normal(32, 8), tokens)


MODELS = {
    fully_sharded: ((2, 2), ("fsdp", "tp")),
    experts: ((4,), ("expert",)),
    ring_of_keys: ((4,), ("row",)),
    sequence_parallel: ((2, 2), ("data", "model")),
    heads_by_turns: ((4,), ("row",)),
    pipeline: ((4,), ("row",)),
    optimizer_in_parts: ((4,), ("row",)),
    vocabulary: ((4,), ("row",)),
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


def test_what_counters_decide_beside_floats_runs_in_the_ring():
    """A pipeline's branches follow how many batches have gone in, which is counted in the same steps as floats are computed."""
    shape, names = MODELS[pipeline]
    step, cuts, arguments = pipeline(mesh := auto_mesh(shape, names))
    lowered = ipuxla.jit(step, target=small_system(), in_shardings=on(mesh, cuts)).lower(*arguments)
    one, other = (
        jax.tree.leaves(lowered.compile(engine=engine, arithmetic="ring")(*arguments))
        for engine in ("fast", "literal")
    )
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))
