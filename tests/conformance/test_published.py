"""Numbers that nobody here computed: per family of operations, results that stand in print, with where.

Every other witness of the tests is a program (XLA, the interpreters, NumPy). These are not: tables of functions, certified
results, known answers of generators and digests, theorems with whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
import pytest
from jax import lax
from jax.extend.random import threefry_2x32

import ipuxla
from tiles.poplibs.poprand.generators import philox
from tiles.target import Target


@dataclass(frozen=True)
class Published:
    """A result in print.

    Args:
      source: where it stands.
      function: what computes it.
      arguments: of the function.
      result: what is printed there.
      digits: the share of the result (of its largest value) by which a computed one may be off; 0 is exact. No less than
        half of the last digit that is printed, or than what the problem's condition leaves of f64.
    """

    source: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    result: Any
    digits: float = 0.0


CASES: dict[str, Published] = {}


def published(
    name: str, source: str, result: Any, *arguments: Any, digits: float = 0.0
) -> Callable[..., Any]:
    """Name a function by its family and what it computes."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[name] = Published(source, function, arguments, result, digits)
        return function

    return add


def each(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return the function of an array that applies one function to each element."""
    return lambda xs: jnp.stack([f(xs[i]) for i, f in enumerate(functions)])


# ---- elementwise functions

ELEMENTARY: dict[Callable[[Any], Any], tuple[float, float]] = {
    jnp.exp: (1, 2.71828182845904523536),
    jnp.log: (2, 0.69314718055994530942),
    jnp.sqrt: (2, 1.41421356237309504880),
    jnp.cbrt: (2, 1.25992104989487316477),
    jnp.sin: (1, 0.84147098480789650665),
    jnp.cos: (1, 0.54030230586813971740),
    jnp.tan: (1, 1.55740772465490223051),
    jnp.atan: (1, 0.78539816339744830962),
    jnp.asin: (0.5, 0.52359877559829887308),
    jnp.sinh: (1, 1.17520119364380145688),
    jnp.cosh: (1, 1.54308063481524377848),
    jnp.tanh: (1, 0.76159415595576488812),
    jnp.asinh: (1, 0.88137358701954302523),
    lambda x: jnp.sin(x * 1e22): (1, -0.85220084976718880177),
}
published(
    "elementwise: elementary functions",
    "Abramowitz and Stegun, tables 1.1, 4.2, 4.6, 4.15; sin(1e22): Ng, Argument Reduction for Huge Arguments (1992)",
    [result for _, result in ELEMENTARY.values()],
    np.array([x for x, _ in ELEMENTARY.values()], np.float64),
    digits=1e-15,
)(each(list(ELEMENTARY)))

SPECIAL: dict[Callable[[Any], Any], tuple[float, float]] = {
    special.erf: (0.5, 0.5204998778),
    special.erfc: (0.5, 1 - 0.5204998778),
    special.gamma: (1 / 3, 2.678938534707747633),
    special.gammaln: (0.25, 1.288022524698077457),
    special.digamma: (0.25, -4.227453533376265408),
    lambda x: special.polygamma(1, x): (1, 1.644934066848226437),
    lambda x: special.zeta(x, 1.0): (3, 1.202056903159594285),
    special.i0e: (1, 0.4657596077),
    special.i1e: (1, 0.2079104154),
    special.exp1: (1, 0.219383934395520274),
    special.expi: (1, 1.895117816355936755),
    special.ndtri: (0.975, 1.959963984540054236),
    special.spence: (0.5, 0.582240526465012506),
    lambda x: special.betainc(2.0, 3.0, x): (0.5, 11 / 16),
    lambda x: special.gammaincc(5.0, x / 2): (18.307038053275146, 0.05),
}
published(
    "elementwise: special functions",
    "Abramowitz and Stegun, tables 5.1, 6.1, 7.1, 9.8, 23.3, 26.5, 26.8; DLMF 5.4, 5.15, 6.2, 8.17, 25.12",
    [result for _, result in SPECIAL.values()],
    np.array([x for x, _ in SPECIAL.values()], np.float64),
    digits=5e-11,
)(each(list(SPECIAL)))


# ---- bits, loops over integers, digests

_PRIMES = [p for p in range(2, 312) if all(p % q for q in range(2, p))]
_ROUNDS = np.array([math.floor(p ** (1 / 3) % 1 * 2**32) for p in _PRIMES], np.uint32)
_START = np.array([math.floor(p**0.5 % 1 * 2**32) for p in _PRIMES[:8]], np.uint32)
_ABC = np.array([0x61626380, *[0] * 14, 24], np.uint32)


@published(
    "bits: SHA-256 of abc",
    "FIPS 180-2, appendix B.1",
    np.array(
        [
            *(0xBA7816BF, 0x8F01CFEA, 0x414140DE, 0x5DAE2223),
            *(0xB00361A3, 0x96177A9C, 0xB410FF61, 0xF20015AD),
        ],
        np.uint32,
    ),
    _ABC,
)
def sha256(block: Any) -> Any:
    def turned(x: Any, n: int) -> Any:
        return (x >> np.uint32(n)) | (x << np.uint32(32 - n))

    def extend(t: Any, words: Any) -> Any:
        a, b = words[t - 15], words[t - 2]
        s = turned(a, 7) ^ turned(a, 18) ^ (a >> np.uint32(3))
        r = turned(b, 17) ^ turned(b, 19) ^ (b >> np.uint32(10))
        return words.at[t].set(words[t - 16] + s + words[t - 7] + r)

    def turn(state: Any, given: Any) -> Any:
        a, b, c, d, e, f, g, h = state
        word, constant = given
        one = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + constant + word
        two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))
        return jnp.stack([one + two, a, b, c, d + one, e, f, g]), None

    words = lax.fori_loop(16, 64, extend, jnp.zeros(64, jnp.uint32).at[:16].set(block))
    return jnp.asarray(_START) + lax.scan(turn, jnp.asarray(_START), (words, jnp.asarray(_ROUNDS)))[0]


@published(
    "bits: CRC-32 of 123456789",
    "Williams, A Painless Guide to CRC Error Detection Algorithms (1993), section 15",
    np.uint32(0xCBF43926),
    np.frombuffer(b"123456789", np.uint8),
)
def crc32(text: Any) -> Any:
    def shift(_: Any, x: Any) -> Any:
        return jnp.where(x & 1, (x >> 1) ^ np.uint32(0xEDB88320), x >> 1)

    def byte(crc: Any, x: Any) -> Any:
        return lax.fori_loop(0, 8, shift, crc ^ x.astype(jnp.uint32)), None

    return ~lax.scan(byte, jnp.uint32(0xFFFFFFFF), text)[0]


@published(
    "loops: 10,000 steps of minstd_rand0 and minstd_rand",
    "ISO C++ 2011, [rand.predef]",
    np.array([1043618065, 399268537], np.uint64),
    np.array([16807, 48271], np.uint64),
)
def minimal_standards(factors: Any) -> Any:
    return lax.fori_loop(0, 10_000, lambda _, x: x * factors % np.uint64(2**31 - 1), jnp.ones_like(factors))


@published(
    "loops: steps and greatest number of the Collatz sequence of 27", "OEIS A006577, A025586", [111, 9232], 27
)
def collatz(n: Any) -> Any:
    def step(state: Any) -> Any:
        n, count, most = state
        n = jnp.where(n % 2 == 0, n // 2, 3 * n + 1)
        return n, count + 1, jnp.maximum(most, n)

    return jnp.stack(lax.while_loop(lambda state: state[0] > 1, step, (n, 0, n))[1:])


@published("scatter in a loop: primes below 1000", "OEIS A006880: 168", 168, np.ones(1000, bool))
def sieve(is_prime: Any) -> Any:
    numbers = jnp.arange(1000)

    def strike(p: Any, kept: Any) -> Any:
        multiples = jnp.where(kept[p], p * p + p * numbers, 1000)
        return kept.at[multiples].set(False, mode="drop")

    return lax.fori_loop(2, 32, strike, is_prime.at[:2].set(False)).sum()


@published("scan: Fibonacci's 90th number", "OEIS A000045", 2880067194370816120, np.int64([0, 1]))
def fibonacci(start: Any) -> Any:
    return lax.scan(lambda x, _: (jnp.stack([x[1], x[0] + x[1]]), None), start, None, length=90)[0][0]


# ---- reductions, windows, sorting


@published(
    "reduce: 20!, and the 100th harmonic number",
    "OEIS A000142; Knuth, The Art of Computer Programming 1, appendix A: H_100",
    [2432902008176640000.0, 5.187377517639620260805],
    np.arange(1, 101, dtype=np.float64),
    digits=1e-15,
)
def folds(x: Any) -> Any:
    return jnp.stack([jnp.prod(x[:20]), jnp.sum(1 / x)])


_FACTORS = [[p for p in _PRIMES for k in range(1, 8) if n % p**k == 0] for n in range(1, 241)]
_MOEBIUS = np.array([(-1) ** len(f) if len(set(f)) == len(f) else 0 for f in _FACTORS])


@published(
    "cumulative sum: the first zeros of Mertens' function",
    "OEIS A028442",
    [2, 39, 40, 58, 65, 93, 101, 145, 149, 150, 159, 160, 163, 164, 166, 214, 231, 232, 235, 236, 238],
    _MOEBIUS,
)
def mertens(moebius: Any) -> Any:
    return jnp.nonzero(jnp.cumsum(moebius) == 0, size=21)[0] + 1


@published(
    "convolution: the partition numbers of 10, 50 and 100",
    "OEIS A000041",
    [42, 204226, 190569292],
    np.arange(1, 101),
)
def partitions(parts: Any) -> Any:
    """The product of 1 / (1 - x^k), a convolution with ones k apart for every k."""

    def times(series: Any, k: Any) -> Any:
        ones = (jnp.arange(101) % k == 0).astype(jnp.float64)
        return jnp.convolve(series, ones, precision="highest")[:101], None

    return lax.scan(times, jnp.zeros(101).at[0].set(1.0), parts)[0][jnp.array([10, 50, 100])].astype(int)


@published(
    "sort: the Burrows-Wheeler transform of mississippi, whose end sorts first",
    "Adjeroh, Bell, Mukherjee, The Burrows-Wheeler Transform (2008): ipssm$pissii",
    np.frombuffer(b"ipssm$pissii", np.uint8),
    np.frombuffer(b"mississippi$", np.uint8),
)
def burrows_wheeler(text: Any) -> Any:
    n = text.size
    turns = text[(jnp.arange(n)[:, None] + jnp.arange(n)) % n]
    return turns[jnp.lexsort(tuple(turns.T[::-1]))][:, -1]


@published(
    "reduce_window: a glider is where it was, a cell down and right, after 4 generations",
    "Gardner, Mathematical Games, Scientific American 223 (October 1970)",
    np.roll(np.pad([[0, 1, 0], [0, 0, 1], [1, 1, 1]], ((1, 4), (1, 4))), (1, 1), (0, 1)),
    np.pad([[0, 1, 0], [0, 0, 1], [1, 1, 1]], ((1, 4), (1, 4))),
)
def life(cells: Any) -> Any:
    def generation(_: Any, x: Any) -> Any:
        around = lax.reduce_window(x, 0, lax.add, (3, 3), (1, 1), "SAME")
        return ((around == 3) | ((around == 4) & (x == 1))).astype(x.dtype)

    return lax.fori_loop(0, 4, generation, cells)


# ---- Fourier transforms

_P = 23
_SYMBOLS = np.array([0] + [1 if pow(n, (_P - 1) // 2, _P) == 1 else -1 for n in range(1, _P)], np.float64)


@published(
    "fft: Legendre symbols modulo 23 are their own transform, times -i sqrt(23)",
    "Gauss, Summatio quarumdam serierum singularium (1811)",
    -1j * math.sqrt(_P) * _SYMBOLS,
    _SYMBOLS,
    digits=1e-14,
)
def gauss_sums(x: Any) -> Any:
    return jnp.fft.fft(x)


@published(
    "fft: four numbers",
    "Wikipedia, Discrete Fourier transform, Example",
    np.array([2, -2 - 2j, -2j, 4 + 4j]),
    np.array([1, 2 - 1j, -1j, -1 + 2j]),
    digits=1e-15,
)
def four(x: Any) -> Any:
    return jnp.fft.fft(x)


# ---- contractions and linear algebra

HILBERT = 1 / (np.arange(1, 6)[:, None] + np.arange(5))


@published(
    "inverse: Hilbert's matrix of order 5",
    "Choi, Tricks or Treats with the Hilbert Matrix, Amer. Math. Monthly 90 (1983)",
    [
        [25, -300, 1050, -1400, 630],
        [-300, 4800, -18900, 26880, -12600],
        [1050, -18900, 79380, -117600, 56700],
        [-1400, 26880, -117600, 179200, -88200],
        [630, -12600, 56700, -88200, 44100],
    ],
    HILBERT,
    digits=1e-10,
)
def inverse(x: Any) -> Any:
    return jnp.linalg.inv(x)


@published(
    "determinant: Hilbert's matrix of order 5", "OEIS A005249", 1 / 266716800000, HILBERT, digits=1e-11
)
def determinant(x: Any) -> Any:
    return jnp.linalg.det(x)


ROSSER = np.array(
    [
        [611, 196, -192, 407, -8, -52, -49, 29],
        [196, 899, 113, -192, -71, -43, -8, -44],
        [-192, 113, 899, 196, 61, 49, 8, 52],
        [407, -192, 196, 611, 8, 44, 59, -23],
        [-8, -71, 61, 8, 411, -599, 208, 208],
        [-52, -43, 49, 44, -599, 411, 208, 208],
        [-49, -8, 8, 59, 208, 208, 99, -911],
        [29, -44, 52, -23, 208, 208, -911, 99],
    ],
    np.float64,
)


@published(
    "eigh: Rosser's matrix",
    "Rosser, Lanczos, Hestenes, Karush, J. Res. Nat. Bur. Standards 47 (1951)",
    [
        *(-10 * math.sqrt(10405), 0, 510 - 100 * math.sqrt(26), 1000, 1000),
        *(510 + 100 * math.sqrt(26), 1020, 10 * math.sqrt(10405)),
    ],
    ROSSER,
    digits=1e-14,
)
def symmetric(x: Any) -> Any:
    return jnp.linalg.eigvalsh(x)


@published(
    "eigh: the greatest two eigenvalues of Wilkinson's W21+",
    "Wilkinson, The Algebraic Eigenvalue Problem (1965), p. 309",
    [10.746194182903322, 10.746194182903393],
    np.diag(np.abs(np.arange(-10.0, 11))) + np.diag(np.ones(20), 1) + np.diag(np.ones(20), -1),
    digits=2e-15,
)
def wilkinson(x: Any) -> Any:
    return jnp.linalg.eigvalsh(x)[-2:]


@published(
    "eig: the real root of x^3 - 2x - 5",
    "Wallis, A Treatise of Algebra (1685), after Newton",
    2.09455148154232659148,
    np.array([[0, 2, 5], [1, 0, 0], [0, 1, 0]], np.float64),
    digits=1e-14,
)
def companion(x: Any) -> Any:
    return jnp.max(jnp.linalg.eigvals(x).real)


@published(
    "cholesky: a factor of whole numbers",
    "Wikipedia, Cholesky decomposition, Example",
    [[2, 0, 0], [6, 1, 0], [-8, 5, 3]],
    np.array([[4, 12, -16], [12, 37, -43], [-16, -43, 98]], np.float64),
    digits=1e-15,
)
def cholesky(x: Any) -> Any:
    return jnp.linalg.cholesky(x)


@published(
    "qr: a factor of whole numbers, up to the signs of its rows",
    "Wikipedia, QR decomposition, Example",
    [[14, 21, 14], [0, 175, 70], [0, 0, 35]],
    np.array([[12, -51, 4], [6, 167, -68], [-4, 24, -41]], np.float64),
    digits=1e-14,
)
def triangular(x: Any) -> Any:
    return jnp.abs(jnp.linalg.qr(x)[1])


@published(
    "svd: of [[1, 1], [0, 1]] the golden ratio and its inverse",
    "OEIS A001622",
    [1.61803398874989484820, 0.61803398874989484820],
    np.array([[1.0, 1], [0, 1]]),
    digits=1e-15,
)
def singular(x: Any) -> Any:
    return jnp.linalg.svd(x, compute_uv=False)


@published(
    "expm: example 1",
    "Moler and Van Loan, Nineteen Dubious Ways to Compute the Exponential of a Matrix, SIAM Review 20 (1978)",
    [[-0.735759, 0.551819], [-1.471518, 1.103638]],
    np.array([[-49.0, 24], [-64, 31]]),
    digits=1e-6,
)
def exponential(x: Any) -> Any:
    return jax.scipy.linalg.expm(x)


LONGLEY = np.array(
    [
        [60323, 83.0, 234289, 2356, 1590, 107608, 1947],
        [61122, 88.5, 259426, 2325, 1456, 108632, 1948],
        [60171, 88.2, 258054, 3682, 1616, 109773, 1949],
        [61187, 89.5, 284599, 3351, 1650, 110929, 1950],
        [63221, 96.2, 328975, 2099, 3099, 112075, 1951],
        [63639, 98.1, 346999, 1932, 3594, 113270, 1952],
        [64989, 99.0, 365385, 1870, 3547, 115094, 1953],
        [63761, 100.0, 363112, 3578, 3350, 116219, 1954],
        [66019, 101.2, 397469, 2904, 3048, 117388, 1955],
        [67857, 104.6, 419180, 2822, 2857, 118734, 1956],
        [68169, 108.4, 442769, 2936, 2798, 120445, 1957],
        [66513, 110.8, 444546, 4681, 2637, 121950, 1958],
        [68655, 112.6, 482704, 3813, 2552, 123366, 1959],
        [69564, 114.2, 502601, 3931, 2514, 125368, 1960],
        [69331, 115.7, 518173, 4806, 2572, 127852, 1961],
        [70551, 116.9, 554894, 4007, 2827, 130081, 1962],
    ]
)


@published(
    "lstsq: Longley's regression, the coefficients over their certified values",
    "NIST Statistical Reference Datasets, Longley",
    np.ones(7),
    LONGLEY,
    digits=1e-7,
)
def regression(data: Any) -> Any:
    certified = jnp.array(
        [
            *(-3482258.63459582, 15.0618722713733, -0.0358191792925910, -2.02022980381683),
            *(-1.03322686717359, -0.0511041056535807, 1829.15146461355),
        ]
    )
    columns = jnp.concatenate([jnp.ones((16, 1)), data[:, 1:]], axis=1)
    q, r = jnp.linalg.qr(columns)
    return jax.scipy.linalg.solve_triangular(r, q.T @ data[:, 0]) / certified


# ---- random bits

KNOWN_THREEFRY = (
    ("0 0", "0 0", "6b200159 99ba4efe"),
    ("ffffffff ffffffff", "ffffffff ffffffff", "1cb996fc bb002be7"),
    ("243f6a88 85a308d3", "13198a2e 03707344", "c4923a9c 483df7a0"),
)
KNOWN_PHILOX = (
    ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)


def words(text: str) -> np.ndarray:
    """Return hexadecimal words."""
    return np.array([int(word, 16) for word in text.split()], np.uint32)


published(
    "random bits: threefry2x32-20",
    "Random123 1.14, kat_vectors",
    np.stack([words(result) for _, _, result in KNOWN_THREEFRY]),
    np.stack([words(key) for _, key, _ in KNOWN_THREEFRY]),
    np.stack([words(counter) for counter, _, _ in KNOWN_THREEFRY]),
)(jax.vmap(lambda key, counter: threefry_2x32((key[0], key[1]), counter)))


def test_philox_gives_its_known_answers() -> None:
    """The generator alone: XLA's operation hashes the key first. Source: Random123 1.14, kat_vectors, philox4x32-10."""
    with jax.enable_x64(True):
        for counter, key, result in KNOWN_PHILOX:
            first, second = map(jnp.asarray, words(key))
            a, b, c, d = map(jnp.asarray, words(counter))
            got = philox((first, second), (a, b), (c, d))
            np.testing.assert_array_equal(np.stack(got), words(result))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_published(name: str, engine: str, tiny_target: Target) -> None:
    case = CASES[name]
    with jax.enable_x64(True):
        got = np.asarray(ipuxla.jit(case.function, target=tiny_target, engine=engine)(*case.arguments))
    want = np.asarray(case.result)
    assert got.shape == want.shape
    if not case.digits:
        assert [int(x) for x in got.ravel()] == [int(x) for x in want.ravel()], case.source
    np.testing.assert_allclose(got, want, rtol=0, atol=case.digits * np.abs(want).max(), err_msg=case.source)
