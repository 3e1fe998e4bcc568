#!/usr/bin/env python3
"""Exchanges samples and reduces gradients 20,000 times each (LEVADA_SOAK_ROUNDS), and checks that no rank's memory,
descriptors or threads grow: exchange_soak.py, with a Python that has levada.

Two ranks swap their samples, drop what they received, and sum two tensors; the sums and the samples are checked. The
first tenth of the rounds is a warm-up. Exits with status 1 if something has grown.
"""

import os
import pathlib
import subprocess
import sys

from soak import ALLOWED_KB, kilobytes

ROUNDS = int(os.environ.get("LEVADA_SOAK_ROUNDS", "20000"))


def used():
    """Returns (private kilobytes, shared kilobytes, open files, threads) of this process."""
    here = pathlib.Path("/proc/self")
    return (*kilobytes(os.getpid()), len(os.listdir(here / "fd")), len(os.listdir(here / "task")))


def be_a_rank():
    import numpy as np

    import levada
    from levada import exchange

    rank = levada.rank()
    ids = [[f"{of}-{i}" for i in range(8)] for of in (0, 1)]
    lengths = [i % 5 * 100 for i in range(8)]
    tokens = np.concatenate([np.full(length, rank * 10 + i) for i, length in enumerate(lengths)])
    store = exchange.Store()
    store.store(exchange.SampleBatch(ids[rank], {"tokens": tokens}, {"tokens": lengths}))
    gradients = [np.full((2, 1000), rank + 1.0, np.float32), np.full((2, 3), rank + 1.0, np.float32)]
    early = None
    with levada.ReduceScatter() as reduce:
        for round in range(ROUNDS):
            exchange.redistribute(store, {0: ids[1], 1: ids[0]}, ["tokens"])
            if (store.get(ids[1 - rank])["tokens"] != tokens + (10 if rank == 0 else -10)).any():
                sys.exit(f"exchange soak: other samples arrived in round {round}")
            store.remove(ids[1 - rank])
            sums = []
            for gradient in gradients:
                reduce(gradient, sums.append)
            reduce.flush()
            if len(sums) != 2 or not all((each == 3).all() for each in sums):
                sys.exit(f"exchange soak: other sums in round {round}")
            if round == ROUNDS // 10:
                early = used()
    late = used()
    grown = [after - before for after, before in zip(late, early, strict=True)]
    print(f"rank {rank}: private {late[0]} KiB ({grown[0]:+} since the first tenth), shared {late[1]} KiB ({grown[1]:+}), "
          f"{late[2]} files ({grown[2]:+}), {late[3]} threads ({grown[3]:+})")
    sys.exit(max(grown[:2]) > ALLOWED_KB or grown[2] > 0 or grown[3] > 0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        be_a_rank()
    sys.exit(subprocess.run([sys.executable, "-m", "levada", "run", "-n", "2", __file__, "rank"]).returncode)
