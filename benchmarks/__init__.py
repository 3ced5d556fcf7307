"""Side-by-side ratios against ``jax.jit``, measured interleaved in one process. Never part of the tests."""

import os

os.environ["IPUXLA_CACHE_DIR"] = ""  # what is timed is compiled
