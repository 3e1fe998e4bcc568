"""The beginning of scripts that ranks on several hosts run.

LEVADA_TEST_ENGINE names the engine that joins several hosts; otherwise levada.join() chooses it.
"""

from __future__ import annotations

import os

ENGINE = os.environ.get("LEVADA_TEST_ENGINE", "auto")

JOIN = f"""
import os, threading, time
import numpy as np
import torch
import torch.distributed as dist
import levada
dist.init_process_group("gloo")
job = levada.join(engine="auto" if os.environ.get("ONE_HOST") else {ENGINE!r}, timeout=60)
"""
