"""Side-by-side ratios against ``jax.jit``, measured interleaved in one process. Never part of the tests."""
