"""A pipeline that shuffles in one process and transforms in two others; it is stopped and then resumed.

    python examples/pipeline.py
"""

import levada
import numpy as np


def lines():
    """A stream, such as a download, that has only one reader at a time."""
    for number in range(2000):
        yield f"line {number} of a text that is being read"


def tokenize(line):
    return np.frombuffer(line.encode(), dtype=np.uint8)[:32]


def pad(rows):
    batch = np.zeros((len(rows), 32), np.uint8)
    for at, row in enumerate(rows):
        batch[at, : len(row)] = row
    return batch


def main():
    pipeline = levada.Pipeline(lines).shuffle(500).dispatch().map(tokenize).batch(16, collate=pad)
    print(pipeline.show(workers=2))
    with pipeline.run(workers=2, seed=7) as run:
        batches = iter(run)
        begun = [next(batches) for _ in range(20)]
        state = run.state_dict()
        rest = list(batches)
    print(f"{len(begun)} batches, then {len(rest)}: {sum(map(len, begun + rest))} lines")
    with pipeline.run(workers=2) as run:
        run.load_state_dict(state)
        again = list(run)
    same = all(np.array_equal(one, other) for one, other in zip(rest, again, strict=True))
    print(f"gone on with {len(again)} batches, {'the same' if same else 'others'}")


if __name__ == "__main__":
    main()
