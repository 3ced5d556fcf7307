"""Files from anywhere: modules and executables changed at random, and what reading them may come to.

``python -m tests.hostile modules|executables [--count N] [--minutes M] [--seed S]`` changes as many as asked for and
tells what it found: processes that died, what took too long, errors without a name of ours.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["IPUXLA_CACHE_DIR"] = ""  # every case is compiled
