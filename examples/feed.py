"""The program of docs/python/feed.md: levada run -n 4 examples/feed.py [CORPUS...]

Without arguments, it feeds batches of a Python iterable; with files, a corpus that the C++ core reads. `levada feed
examples.feed:batches --mesh dp=2` feeds the same iterable and shows what each rank received.
"""

import sys

import levada
import numpy as np


def batches():
    """Any iterable of nested batches; only the reader iterates it."""
    for step in range(16):
        yield {"tokens": np.full((8, 128), step), "meta": {"name": f"batch {step}"}}


def main():
    mesh = levada.Mesh.from_env(tp=2) if levada.world_size() % 2 == 0 else levada.Mesh.from_env()
    if sys.argv[1:]:
        feed = levada.Feed(levada.Corpus(sys.argv[1:], seq_length=1024, shuffle=True, seed=7, tokenizer="bytes"), mesh=mesh, batch_size=8)
    else:
        feed = levada.Feed(batches(), mesh=mesh)

    tokens = 0
    for batch in feed:  # ends on every rank at the same step
        tokens += batch["tokens"].size  # a read-only view of shared memory
    print(f"rank {levada.rank()} ({mesh.describe(levada.rank())}): {tokens} tokens in {feed.step} steps", flush=True)


if __name__ == "__main__":
    main()
