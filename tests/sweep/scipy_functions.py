"""jax.scipy but linear algebra and Fourier transforms."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import jax.scipy as js
import jax.scipy.optimize
import jax.scipy.spatial.transform
import numpy as np

from tests.sweep.cases import Group, definite, integers, normal, uniform

GROUP = Group("jax.scipy")
add = GROUP.add
S = js.special

X = normal(3, 4)
P, Q, T = (
    uniform(3, 4, low=0.2, high=4.0),
    uniform(3, 4, low=0.2, high=4.0, seed=1),
    uniform(3, 4, low=0.05, high=0.95),
)
N = integers(5, 3, 4, low=1)

_ON_REALS = """dawsn erf erfc erfcx expit fresnel i0 i0e i1 i1e log_ndtr log_softmax logsumexp ndtr sici softmax wofz"""
for _name in _ON_REALS.split():
    add(f"scipy.special.{_name}", getattr(S, _name), X)
_ON_POSITIVES = "digamma entr exp1 expi factorial gamma gammaln gammasgn loggamma spence"
for _name in _ON_POSITIVES.split():
    add(f"scipy.special.{_name}", getattr(S, _name), P)
for _name in "erfinv logit ndtri".split():
    add(f"scipy.special.{_name}", getattr(S, _name), T)
_OF_TWO = "beta betaln boxcox boxcox1p gammainc gammaincc kl_div owens_t poch rel_entr xlog1py xlogy"
for _name in _OF_TWO.split():
    add(f"scipy.special.{_name}", getattr(S, _name), P, Q)
add("scipy.special.betainc", S.betainc, P, Q, T)
add("scipy.special.bernoulli", lambda: S.bernoulli(7))
add("scipy.special.bessel_jn", lambda x: S.bessel_jn(x, v=3, n_iter=30), P[0])
add("scipy.special.comb", S.comb, N + 4, N)
add("scipy.special.expn", S.expn, N, P)
add("scipy.special.hyp1f1", S.hyp1f1, P, Q, T)
add("scipy.special.hyp2f1", S.hyp2f1, P[0], Q[0], P[0] + Q[0], T[0])
add("scipy.special.multigammaln", lambda x: S.multigammaln(x + 3, 3), P)
add("scipy.special.polygamma", S.polygamma, N, P)
add("scipy.special.zeta", S.zeta, P + 1.2, Q)
add(
    "scipy.special.sph_harm_y",
    lambda n, m, t, p: S.sph_harm_y(n, m, t, p, n_max=3),
    np.array([2, 3]),
    np.array([1, -2]),
    P[0, :2],
    Q[0, :2],
)
for _name in "gammaln digamma erf erfinv ndtri log_ndtr i0e xlogy".split():
    _function = getattr(S, _name) if _name != "xlogy" else lambda x: S.xlogy(x, x)
    add(f"scipy.special.{_name}: gradient", jax.grad(lambda x, f=_function: f(x).sum()), T)
add("scipy.special.gammainc: gradient", jax.grad(lambda a, x: S.gammainc(a, x).sum(), (0, 1)), P[0], Q[0])
add(
    "scipy.special.betainc: gradient", jax.grad(lambda a, b, x: S.betainc(a, b, x).sum(), 2), P[0], Q[0], T[0]
)
add(
    "scipy.special.gammaln: 64 bits",
    lambda x: (S.gammaln(x), S.erf(x), S.erfinv(x / 5), S.digamma(x), S.gammainc(x, x)),
    P.astype(np.float64),
    x64=True,
)
add("scipy.special.lpmn", lambda x: S.sph_harm_y(jnp.array([3]), jnp.array([2]), x[:1], x[:1], n_max=4), P[0])

# ---- distributions

_LAWS = {
    "bernoulli": (N % 2, T),
    "beta": (T, P, Q),
    "betabinom": (N, 9, P, Q),
    "binom": (N, 9, T),
    "cauchy": (X,),
    "chi2": (P, Q),
    "expon": (P,),
    "gamma": (P, Q),
    "gennorm": (X, P),
    "geom": (N, T),
    "gumbel_l": (X,),
    "gumbel_r": (X,),
    "laplace": (X,),
    "logistic": (X,),
    "nbinom": (N, P, T),
    "norm": (X, Q, P),
    "pareto": (P + 1, Q),
    "poisson": (N, P),
    "t": (X, P),
    "truncnorm": (T, -1.0, 2.0),
    "uniform": (X,),
    "vonmises": (X, P),
    "wrapcauchy": (P, T),
}
for _name, _arguments in _LAWS.items():
    _law = importlib.import_module(f"jax.scipy.stats.{_name}")
    _methods = [
        m for m in ("logpdf", "logpmf", "pdf", "pmf", "cdf", "logcdf", "sf", "logsf") if hasattr(_law, m)
    ]
    add(
        f"scipy.stats.{_name}",
        lambda *a, law=_law, ms=_methods: [getattr(law, m)(*a) for m in ms],
        *_arguments,
    )
    if hasattr(_law, "ppf"):
        _rest = _arguments[1:]
        add(f"scipy.stats.{_name}: ppf", lambda *a, law=_law: law.ppf(*a), T, *_rest)
add("scipy.stats.dirichlet", lambda x, a: js.stats.dirichlet.logpdf(x / x.sum(0), a), P[:, 0], Q[:, 0])
add("scipy.stats.multinomial", lambda n, p: js.stats.multinomial.logpmf(n, n.sum(), p / p.sum()), N[0], T[0])
add(
    "scipy.stats.multivariate_normal",
    lambda x, m, c: (js.stats.multivariate_normal.logpdf(x, m, c), js.stats.multivariate_normal.pdf(x, m, c)),
    X,
    X[0],
    definite(4, 4),
)
add(
    "scipy.stats.gaussian_kde",
    lambda x, y: (lambda k: (k(y), k.logpdf(y), k.integrate_box_1d(-1.0, 0.5)))(js.stats.gaussian_kde(x)),
    normal(20),
    normal(5),
)
add("scipy.stats.mode", lambda n: js.stats.mode(n, axis=None), N)
for _name in "rankdata sem".split():
    add(f"scipy.stats.{_name}", getattr(js.stats, _name), X)
add(
    "scipy.stats.norm: gradient",
    jax.grad(lambda x: js.stats.norm.logcdf(x).sum() + js.stats.gamma.logpdf(jnp.abs(x), 2.0).sum()),
    X,
)

# ---- signals and images

SIGNAL, KERNEL = normal(2, 20), normal(5)
PICTURE = normal(6, 7)
for _mode in "full same valid".split():
    add(
        f"scipy.signal.convolve: {_mode}",
        lambda x, k, m=_mode: js.signal.convolve(x[0], k, m),
        SIGNAL,
        KERNEL,
    )
    add(
        f"scipy.signal.correlate: {_mode}",
        lambda x, k, m=_mode: js.signal.correlate(x[0], k, m),
        SIGNAL,
        KERNEL,
    )
    add(
        f"scipy.signal.correlate2d: {_mode}",
        lambda x, k, m=_mode: js.signal.correlate2d(x, k, m),
        PICTURE,
        normal(3, 2),
    )
    add(
        f"scipy.signal.convolve2d: {_mode}",
        lambda x, k, m=_mode: js.signal.convolve2d(x, k, m),
        PICTURE,
        normal(3, 2),
    )
    add(
        f"scipy.signal.fftconvolve: {_mode}",
        lambda x, k, m=_mode: js.signal.fftconvolve(x[0], k, m),
        SIGNAL,
        KERNEL,
    )
add("scipy.signal.convolve: by fft", lambda x, k: js.signal.convolve(x[0], k, method="fft"), SIGNAL, KERNEL)
add("scipy.signal.detrend", lambda x: (js.signal.detrend(x), js.signal.detrend(x, type="constant")), SIGNAL)
add("scipy.signal.stft", lambda x: js.signal.stft(x, nperseg=8), SIGNAL)
add("scipy.signal.istft", lambda x: js.signal.istft(js.signal.stft(x, nperseg=8)[2], nperseg=8), SIGNAL)
add("scipy.signal.csd", lambda x: js.signal.csd(x[0], x[1], nperseg=8), SIGNAL)
add("scipy.signal.welch", lambda x: js.signal.welch(x, nperseg=8), SIGNAL)
for _mode in "constant nearest wrap mirror reflect".split():
    add(
        f"scipy.ndimage.map_coordinates: {_mode}",
        lambda x, c, m=_mode: [
            js.ndimage.map_coordinates(x, [c[0] * 9, c[1] * 9], order, m) for order in (0, 1)
        ],
        PICTURE,
        normal(2, 4),
    )
add(
    "scipy.ndimage.map_coordinates: gradient",
    jax.grad(lambda x, c: (js.ndimage.map_coordinates(x, [c[0], c[1]], 1) ** 2).sum(), (0, 1)),
    PICTURE,
    uniform(2, 4, high=4.0),
)
add(
    "scipy.interpolate.RegularGridInterpolator",
    lambda v, x: [
        js.interpolate.RegularGridInterpolator((jnp.arange(6.0), jnp.arange(7.0)), v, method=m)(x)
        for m in ("linear", "nearest")
    ],
    PICTURE,
    uniform(5, 2, high=4.5),
)
add("scipy.integrate.trapezoid", js.integrate.trapezoid, X)
add("scipy.cluster.vq.vq", js.cluster.vq.vq, normal(9, 4), normal(3, 4, seed=1))
add(
    "scipy.optimize.minimize",
    lambda x: (lambda r: (r.x, r.success))(
        js.optimize.minimize(lambda v: ((v - 1.0) ** 2).sum() + (v[0] * v[1]) ** 2, x, method="BFGS")
    ),
    normal(2),
)
add(
    "scipy.optimize.minimize: options",
    lambda x: (
        js.optimize.minimize(lambda v: jnp.cosh(v - 1.0).sum(), x, method="BFGS", options={"maxiter": 3}).x
    ),
    normal(3),
)
add(
    "scipy.spatial.transform.Rotation",
    lambda q, v: (lambda r: (r.apply(v), r.as_matrix(), r.as_euler("xyz"), r.inv().as_rotvec()))(
        js.spatial.transform.Rotation.from_quat(q)
    ),
    normal(4),
    normal(3),
)
add(
    "scipy.spatial.transform.Slerp",
    lambda q, t: js.spatial.transform.Slerp.init(jnp.arange(3.0), js.spatial.transform.Rotation.from_quat(q))(
        t
    ).as_quat(),
    normal(3, 4),
    np.array([0.3, 1.5], np.float32),
)
