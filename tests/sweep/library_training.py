"""Optimizers, solvers, reinforcement learning, ways to train."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.sweep.cases import booleans, definite, integers, normal, uniform
from tests.sweep.library_parts import GROUP, dense, dense_params, layer_norm, weights

add = GROUP.add
KEY = jax.random.key(0)


# ---- optimizers

PARAMS = {"w": normal(4, 5), "b": normal(5)}
GRADS = {"w": normal(4, 5, seed=1), "b": normal(5, seed=1)}
ZEROS = jax.tree.map(np.zeros_like, PARAMS)


def adam(params, grads, state):
    """Return AdamW's update, with bias corrections, decay and clipping by the global norm."""
    count, m, v = state
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), grads)
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, grads)
    rate = 1e-3 * jnp.minimum(count / 10.0, 1.0) * 0.5 * (1 + jnp.cos(jnp.pi * count / 100))

    def step(p, m, v):
        return p - rate * (m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8) + 0.01 * p)

    return jax.tree.map(step, params, m, v), (count, m, v)


add("library: AdamW", adam, PARAMS, GRADS, (np.int32(4), ZEROS, ZEROS))
add(
    "library: Lion",
    lambda p, g, m: (
        jax.tree.map(lambda p, g, m: p - 1e-3 * (jnp.sign(0.9 * m + 0.1 * g) + 0.1 * p), p, g, m),
        jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g, m, g),
    ),
    PARAMS,
    GRADS,
    ZEROS,
)


def adafactor(p, g, row, column):
    """Return Adafactor's update of a matrix by factored second moments."""
    square = g * g + 1e-30
    row, column = 0.9 * row + 0.1 * square.mean(-1), 0.9 * column + 0.1 * square.mean(-2)
    update = g * lax.rsqrt(row / row.mean())[:, None] * lax.rsqrt(column)[None]
    update = update / jnp.maximum(1.0, jnp.sqrt((update**2).mean()))
    return p - 1e-2 * jnp.maximum(1e-3, jnp.sqrt((p**2).mean())) * update, row, column


add("library: Adafactor", adafactor, normal(4, 5), normal(4, 5, seed=1), uniform(4), uniform(5))
add(
    "library: LAMB",
    lambda p, u: jax.tree.map(
        lambda p, u: (
            p
            - 1e-2
            * jnp.where(
                (jnp.linalg.norm(p) > 0) & (jnp.linalg.norm(u) > 0),
                jnp.linalg.norm(p) / jnp.linalg.norm(u),
                1.0,
            )
            * u
        ),
        p,
        u,
    ),
    PARAMS,
    GRADS,
)


def shampoo(p, g, left, right):
    """Return Shampoo's update: inverse fourth roots of both sides' statistics."""

    def root(a):
        w, v = jnp.linalg.eigh(a + 1e-3 * jnp.eye(a.shape[0]))
        return (v * jnp.maximum(w, 1e-3) ** -0.25) @ v.T

    left, right = left + g @ g.T, right + g.T @ g
    return p - 0.1 * root(left) @ g @ root(right), left, right


add("library: Shampoo", shampoo, normal(4, 3), normal(4, 3, seed=1), definite(4, 4), definite(3, 3))


def muon(g, steps=3):
    """Return the nearest orthogonal matrix by Newton-Schulz iterations."""
    x = g / (jnp.linalg.norm(g) + 1e-7)

    def step(_, x):
        a = x @ x.T
        return 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x

    return lax.fori_loop(0, steps, step, x)


add("library: Muon", muon, normal(4, 6))
add(
    "library: SGD with a schedule by switch",
    lambda p, g, n: jax.tree.map(
        lambda p, g: (
            p
            - lax.switch(jnp.searchsorted(jnp.array([10, 20]), n), [lambda: 0.1, lambda: 0.01, lambda: 0.001])
            * g
        ),
        p,
        g,
    ),
    PARAMS,
    GRADS,
    15,
)


def conjugate_gradient(a, b):
    """Solve by conjugate gradients, until the residual is small."""

    def step(state):
        x, r, p, rs, n = state
        ap = a @ p
        alpha = rs / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        return x, r, r + new / rs * p, new, n + 1

    return lax.while_loop(lambda s: (s[3] > 1e-8) & (s[4] < 20), step, (jnp.zeros_like(b), b, b, b @ b, 0))[0]


add("library: conjugate gradients", conjugate_gradient, definite(6, 6), normal(6))


def lbfgs(x, memory=3, rounds=5):
    """Minimize by L-BFGS with a backtracking line search."""
    f = lambda x: ((x[1:] - x[:-1] ** 2) ** 2).sum() + ((1 - x) ** 2).sum()  # noqa: E731

    def direction(g, s, y, rho):
        def first(q, i):
            a = rho[i] * (s[i] @ q)
            return q - a * y[i], a

        q, alphas = lax.scan(first, g, jnp.arange(memory), reverse=True)
        gamma = jnp.where(rho[-1] > 0, (s[-1] @ y[-1]) / jnp.maximum(y[-1] @ y[-1], 1e-10), 1.0)
        return -lax.scan(
            lambda r, i: (r + s[i] * (alphas[i] - rho[i] * (y[i] @ r)), None), q * gamma, jnp.arange(memory)
        )[0]

    def step(_, state):
        x, s, y, rho = state
        g = jax.grad(f)(x)
        d = direction(g, s, y, rho)
        size = lax.while_loop(
            lambda t: (f(x + t * d) > f(x) + 1e-4 * t * (g @ d)) & (t > 1e-4),
            lambda t: t * 0.5,
            jnp.float32(1),
        )
        new = x + size * d
        ds, dy = new - x, jax.grad(f)(new) - g
        curvature = ds @ dy
        push = lambda a, v: jnp.roll(a, -1, 0).at[-1].set(v)  # noqa: E731
        return new, push(s, ds), push(y, dy), push(rho, jnp.where(curvature > 1e-10, 1 / curvature, 0.0))

    zeros = jnp.zeros((memory, x.shape[0]))
    return lax.fori_loop(0, rounds, step, (x, zeros, zeros, jnp.zeros(memory)))[0]


add("library: L-BFGS", lbfgs, normal(4, scale=0.3))


def k_means(x, centers, rounds=4):
    """Assign and average."""

    def step(centers, _):
        nearest = jnp.argmin(((x[:, None] - centers[None]) ** 2).sum(-1), 1)
        count = jnp.zeros(centers.shape[0]).at[nearest].add(1.0)
        total = jnp.zeros_like(centers).at[nearest].add(x)
        return jnp.where(count[:, None] > 0, total / jnp.maximum(count, 1)[:, None], centers), nearest

    return lax.scan(step, centers, None, rounds)


add("library: K-means", k_means, normal(13, 2), normal(3, 2))


def sinkhorn(cost, rounds=5):
    """Return a transport plan by Sinkhorn's iterations on logarithms."""
    n, m = cost.shape

    def step(fg, _):
        f, g = fg
        f = -jax.nn.logsumexp(g[None] - cost / 0.5, 1) - jnp.log(n)
        return (f, -jax.nn.logsumexp(f[:, None] - cost / 0.5, 0) - jnp.log(m)), None

    (f, g), _ = lax.scan(step, (jnp.zeros(n), jnp.zeros(m)), None, rounds)
    return jnp.exp(f[:, None] + g[None] - cost / 0.5)


add("library: Sinkhorn", jax.value_and_grad(lambda c: (sinkhorn(c) * c).sum()), uniform(4, 5))

# ---- reinforcement learning


def dqn_loss(params, target, batch):
    """Return the loss of double Q-learning with Huber's function."""
    net = lambda p, s: dense(p["b"], jax.nn.relu(dense(p["a"], s)))  # noqa: E731
    q = jnp.take_along_axis(net(params, batch["s"]), batch["a"][:, None], 1)[:, 0]
    best = jnp.argmax(net(params, batch["next"]), 1)
    future = net(target, batch["next"])[jnp.arange(q.shape[0]), best]
    wanted = batch["r"] + 0.99 * (1 - batch["done"]) * lax.stop_gradient(future)
    error = jnp.abs(q - wanted)
    return jnp.where(error < 1, 0.5 * error**2, error - 0.5).mean()


_NET = {"a": dense_params(4, 6), "b": dense_params(6, 3)}
_BATCH = {
    "s": normal(5, 4),
    "a": integers(3, 5),
    "r": normal(5),
    "next": normal(5, 4, seed=1),
    "done": booleans(5),
}
add("library: DQN loss", jax.value_and_grad(dqn_loss), _NET, jax.tree.map(lambda x: x * 0.9, _NET), _BATCH)


def advantages(rewards, values, dones):
    """Return generalized advantage estimates, backwards in time."""

    def step(state, t):
        advantage, following = state
        r, v, d = t
        delta = r + 0.99 * following * (1 - d) - v
        advantage = delta + 0.99 * 0.95 * (1 - d) * advantage
        return (advantage, v), advantage

    return lax.scan(step, (0.0, values[-1]), (rewards, values[:-1], dones), reverse=True)[1]


add("library: generalized advantages", advantages, normal(6), normal(7), booleans(6).astype(np.float32))


def cart_pole(key, policy, steps=5):
    """Roll out a policy in an environment that resets itself."""

    def step(state, key):
        x, v, angle, spin = state
        action = jax.random.categorical(key, state @ policy)
        force = jnp.where(action == 1, 10.0, -10.0)
        turned = (9.8 * jnp.sin(angle) - jnp.cos(angle) * force / 1.1) / (
            0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1)
        )
        new = jnp.stack([x + 0.02 * v, v + 0.02 * force / 1.1, angle + 0.02 * spin, spin + 0.02 * turned])
        done = (jnp.abs(new[0]) > 2.4) | (jnp.abs(new[2]) > 0.2)
        return lax.cond(done, lambda: jnp.zeros(4), lambda: new), (action, done)

    return lax.scan(step, jnp.array([0.0, 0.1, 0.05, 0.0]), jax.random.split(key, steps))


add("library: environment rolled out", cart_pole, KEY, normal(4, 2))
add(
    "library: environments rolled out", jax.vmap(cart_pole, (0, None)), jax.random.split(KEY, 3), normal(4, 2)
)


def replay_add(buffer, item, position):
    """Write into a ring buffer, and read a batch of it."""
    buffer = jax.tree.map(
        lambda b, i: lax.dynamic_update_index_in_dim(b, i, position % b.shape[0], 0), buffer, item
    )
    chosen = jax.random.randint(KEY, (3,), 0, jnp.minimum(position + 1, 5))
    return buffer, jax.tree.map(lambda b: b[chosen], buffer)


add(
    "library: replay buffer",
    replay_add,
    {"s": normal(5, 2), "a": integers(3, 5)},
    {"s": normal(2), "a": np.int32(1)},
    7,
)
add(
    "library: Monte Carlo tree search's scores",
    lambda visits, values, priors: jnp.argmax(
        jnp.where(visits > 0, values / jnp.maximum(visits, 1), 0)
        + 1.25 * priors * jnp.sqrt(visits.sum()) / (1 + visits)
    ),
    integers(9, 6),
    normal(6),
    uniform(6),
)

# ---- training


def train_step_mixed(params, scale, x, y):
    """Return a step in half precision with a dynamic loss scale: overflow skips it and halves the scale."""
    half = jax.tree.map(lambda p: p.astype(jnp.float16), params)

    def loss(p):
        return (
            jnp.mean((jnp.tanh(x.astype(jnp.float16) @ p["w"] + p["b"]).astype(jnp.float32) - y) ** 2) * scale
        )

    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, jax.grad(loss)(half))
    finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), params, grads)
    return params, jnp.where(finite, scale * 2, scale / 2)


add(
    "library: loss scaling in half precision",
    train_step_mixed,
    PARAMS,
    np.float32(1024),
    normal(3, 4),
    normal(3, 5),
)
add(
    "library: loss scaling that overflows",
    train_step_mixed,
    PARAMS,
    np.float32(1e30),
    normal(3, 4),
    normal(3, 5),
)


def accumulate(params, batches):
    """Return gradients summed over micro-batches by a scan."""
    loss = lambda p, x: (jnp.tanh(x @ p["w"] + p["b"]) ** 2).mean()  # noqa: E731

    def step(total, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(jnp.add, total, grads), value

    return lax.scan(step, jax.tree.map(jnp.zeros_like, params), batches)


add("library: gradients accumulated by scan", accumulate, PARAMS, normal(3, 2, 4))


def layers_by_scan(params, x):
    """Run stacked layers by a scan, each checkpointed."""
    layer = jax.checkpoint(lambda x, w: (x + jax.nn.gelu(layer_norm(x, 1.0, 0.0) @ w), None))
    return lax.scan(layer, x, params)[0]


add(
    "library: layers by scan",
    jax.value_and_grad(lambda p, x: (layers_by_scan(p, x) ** 2).mean()),
    weights(3, 6, 6),
    normal(4, 6),
)
add(
    "library: dropout and stochastic depth",
    lambda k, x: jnp.where(
        jax.random.bernoulli(k, 0.7, (3, 1)),
        x * jax.random.bernoulli(jax.random.fold_in(k, 1), 0.9, x.shape) / 0.9,
        x,
    ),
    KEY,
    normal(3, 6),
)


def implicit_layer(w, x):
    """Return a fixed point, derived implicitly."""

    @jax.custom_vjp
    def solve(w, x):
        return lax.while_loop(
            lambda s: (s[1] > 1e-5) & (s[2] < 30),
            lambda s: (lambda z: (z, jnp.abs(z - s[0]).max(), s[2] + 1))(jnp.tanh(w @ s[0] + x)),
            (jnp.zeros_like(x), jnp.float32(1), 0),
        )[0]

    def forward(w, x):
        z = solve(w, x)
        return z, (w, x, z)

    def backward(kept, g):
        w, x, z = kept
        _, pull = jax.vjp(lambda z: jnp.tanh(w @ z + x), z)
        u = lax.fori_loop(0, 20, lambda _, u: g + pull(u)[0], g)
        return jax.vjp(lambda w, x: jnp.tanh(w @ z + x), w, x)[1](u)

    solve.defvjp(forward, backward)
    return solve(w, x)


add(
    "library: deep equilibrium",
    jax.value_and_grad(lambda w, x: (implicit_layer(w, x) ** 2).sum(), (0, 1)),
    weights(4, 4) * 0.4,
    normal(4),
)
add(
    "library: contrastive loss",
    jax.value_and_grad(
        lambda a, b: (
            -jnp.diag(
                jax.nn.log_softmax(
                    (a / jnp.linalg.norm(a, axis=1, keepdims=True))
                    @ (b / jnp.linalg.norm(b, axis=1, keepdims=True)).T
                    / 0.1
                )
            ).mean()
        ),
        (0, 1),
    ),
    normal(4, 6),
    normal(4, 6, seed=1),
)
add(
    "library: physics-informed network",
    jax.grad(
        lambda p, x: (
            jax.vmap(jax.grad(jax.grad(lambda x: jnp.tanh(x * p["w"][0] + p["b"]).sum())))(x) ** 2
        ).mean()
    ),
    PARAMS,
    normal(5),
)
add(
    "library: neural tangent kernel",
    lambda p, x: (lambda j: j @ j.T)(
        jnp.concatenate(
            [
                v.reshape(x.shape[0], -1)
                for v in jax.tree.leaves(
                    jax.vmap(jax.grad(lambda p, x: jnp.tanh(x @ p["w"] + p["b"]).sum()), (None, 0))(p, x)
                )
            ],
            1,
        )
    ),
    PARAMS,
    normal(3, 4),
)
add(
    "library: molecular dynamics",
    lambda x, v: lax.scan(
        lambda s, _: (
            lambda x, v: (lambda f: ((x + 0.01 * v, v + 0.01 * f), f))(
                -jax.grad(
                    lambda x: (lambda r: jnp.where(r > 0, 1.0 / jnp.where(r > 0, r, 1.0) ** 3, 0.0).sum())(
                        ((x[:, None] - x[None]) ** 2).sum(-1)
                    )
                )(x)
            )
        )(*s),
        (x, v),
        None,
        3,
    ),
    normal(4, 3),
    normal(4, 3, seed=1),
)
add(
    "library: Game of Life",
    lambda b: lax.fori_loop(
        0,
        3,
        lambda _, g: (lambda n: (n == 3) | ((n == 2) & g))(
            sum(
                jnp.roll(g, (i, j), (0, 1)).astype(jnp.int32)
                for i in (-1, 0, 1)
                for j in (-1, 0, 1)
                if i or j
            )
        ),
        b,
    ),
    booleans(6, 6),
)
add(
    "library: power iteration on a graph",
    functools.partial(
        lambda a, rounds: lax.fori_loop(
            0, rounds, lambda _, r: 0.85 * (a / jnp.maximum(a.sum(0), 1)) @ r + 0.15 / 6, jnp.full(6, 1 / 6)
        ),
        rounds=5,
    ),
    booleans(6, 6).astype(np.float32),
)
