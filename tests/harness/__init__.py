"""JAX's own tests of its primitives, run beside ``jax.jit``.

``python -m tests.harness`` runs all cases of ``jax._src.internal_test_util.test_harnesses`` that JAX runs on a CPU and
writes ``results.md``; ``--sample=150`` draws that many anew.
"""
