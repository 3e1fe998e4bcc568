"""Runs DLIO on one rank. Its profilers import tensorflow, which the pytorch framework never calls: an empty module replaces
it. Worker processes that import this module must not import DLIO's main module, which initializes MPI."""

import sys
import types

if __name__ == "__main__":
    sys.modules["tensorflow"] = types.ModuleType("tensorflow")
    from dlio_benchmark.main import main

    main()
