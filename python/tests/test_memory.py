"""Batches made in memory that feeds send from, and writable batches."""

from __future__ import annotations

import pathlib

import levada
import numpy as np
import pytest
import ranks


def test_empty_returns_ordinary_memory_outside_a_feed() -> None:
    array = levada.empty((2, 3), np.int32)
    array[:] = 7
    assert type(array) is np.ndarray and array.shape == (2, 3) and array.dtype == np.int32
    assert levada.empty(4).dtype == np.float64
    with pytest.raises(levada.InvalidArgument, match=r"no tensor has the shape \(2, -1\)"):
        levada.empty((2, -1))


def test_without_torch_collate_stacks_numpy_arrays() -> None:
    samples = [{"x": np.full(3, i), "n": i, "f": i / 2, "s": str(i), "t": (i, [i, np.float32(i)])} for i in range(4)]
    batch = levada.collate(samples)
    assert list(batch) == ["x", "n", "f", "s", "t"]
    assert np.array_equal(batch["x"], [[i] * 3 for i in range(4)])
    assert batch["n"].dtype == np.int64 and batch["f"].tolist() == [0.0, 0.5, 1.0, 1.5] and batch["s"] == list("0123")
    assert levada.collate([np.str_("a"), np.str_("b")]) == ["a", "b"] and levada.collate([np.bytes_(b"a")]) == [b"a"]
    assert batch["t"][0].tolist() == [0, 1, 2, 3] and batch["t"][1][1].dtype == np.float32
    with pytest.raises(TypeError, match="samples hold a object"):
        levada.collate([object()])
    with pytest.raises(RuntimeError, match="different lengths"):
        levada.collate([[1], [1, 2]])
    with pytest.raises(levada.InvalidArgument, match="at least one sample"):
        levada.collate([])


def test_integers_that_no_dtype_holds_never_become_floats() -> None:
    large, tokens = [1, 2**63], np.arange(2)
    for made in (
        lambda: levada.collate(large),
        lambda: levada.collate([np.uint64(1), np.int64(1)]),
        lambda: levada.collate_padded([large, [1]]),
        lambda: levada.collate_padded([[2**63], [1]]),
        lambda: levada.collate_padded([{"x": [[-1, 2**63]]}]),
        lambda: levada.collate_packed([{"tokens": tokens, "ids": large}, {"tokens": tokens, "ids": [1, 2]}]),
    ):
        with pytest.raises(levada.InvalidArgument, match="no dtype of tensors holds"):
            made()
    assert levada.collate([2**63, 2**64 - 1]).dtype == np.uint64
    assert levada.collate([1, 0.5]).tolist() == [1, 0.5]


def test_a_masked_array_never_loses_its_mask() -> None:
    masked = np.ma.masked_array([1, 2], [0, 1])
    for make in (levada.collate, levada.collate_padded):
        with pytest.raises(levada.InvalidArgument, match=r"MaskedArray is more than its elements.*\.filled\(VALUE\)"):
            make([{"x": masked}, {"x": masked}])


COUNT_COPIES = """
from levada import _levada
def copied_by(batches, **options):
    # MiB of payload that a pass of 12 steps copies in this process.
    before = _levada.copied_bytes()
    for step, batch in enumerate(levada.Feed(batches, mesh=levada.Mesh(tp=2), access="read_only", **options)):
        assert (batch["a"] == step).all() and (batch["b"] == -step).all(), step
    return (_levada.copied_bytes() - before) / 2**20
"""


def test_a_batch_allocated_by_empty_is_sent_without_a_copy(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        COUNT_COPIES
        + """
def made(step):
    a, b = levada.empty(2**17), levada.empty((2, 2**16))
    a[:], b[:] = step, -step
    return {"a": a, "b": b}
def made_elsewhere(step):
    return {"a": np.full(2**17, float(step)), "b": np.full(2**17, -float(step))}
def kept():
    for step in range(12):
        batch = made(step)
        yield batch
def reused():
    batch = made(0)
    for step in range(12):
        batch["a"][:], batch["b"][:] = step, -step
        yield batch
class Loader:
    # A feed copies items of an iterator that no rank has taken, for the next pass. This source can be iterated again.
    def __init__(self, make): self.make = make
    def __iter__(self): return map(self.make, range(12))
def collated(step): return levada.collate([{"a": np.float64(step), "b": -step, "c": np.zeros(2**17)}] * 4)
for iterate in ("thread", "inline"):
    tell(made=copied_by(Loader(made), iterate=iterate), collated=copied_by(Loader(collated), iterate=iterate),
         elsewhere=copied_by((made_elsewhere(step) for step in range(12)), iterate=iterate),
         kept=copied_by(kept(), iterate=iterate), reused=copied_by(reused(), iterate=iterate))
""",
    )
    for copied in told[0]:
        assert copied["made"] < 2.1, "nothing is copied but a first batch, which shows how much memory one takes"
        assert copied["collated"] < 0.1, "nothing is copied where that is known"
        assert all(24 <= copied[name] < 24.1 for name in ("elsewhere", "kept", "reused")), "all is copied, once"


def test_the_reader_copies_each_byte_once_however_batches_are_divided(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        from levada import _levada
        def batches():
            for step in range(6):
                yield {"x": np.full((4, 2**16), step), "whole": np.full(2**15, step)}
        before = _levada.copied_bytes()
        for step, batch in enumerate(levada.Feed(batches(), mesh=levada.Mesh(dp=2), divide="split", access="read_only",
                                                 layout={"x": "shard(dp,0)", "whole": []})):
            assert batch["x"].shape == (2, 2**16) and (batch["x"] == step).all() and (batch["whole"] == step).all()
        tell(copied=(_levada.copied_bytes() - before) / 6 / 2**20)
        """,
    )
    assert 2 <= told[0][0]["copied"] < 2.6


def test_a_rank_writes_to_its_batch_unseen_by_others(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
        from levada import _levada
        batches = [{"x": np.full(2**19, step), "y": np.full(2**19, step)} for step in range(12)]
        before = _levada.copied_bytes()
        for step, batch in enumerate(levada.Feed(batches, mesh=levada.Mesh(tp=3), access="private")):
            assert (batch["x"] == step).all() and (batch["y"] == step).all(), "each batch comes as it was sent"
            batch["x"][::2**17] += 100 + rank
            assert batch["x"][0] == step + 100 + rank and batch["x"][1] == step
        tell(copied=(_levada.copied_bytes() - before) / 2**20)
        """,
    )
    assert told[0][0]["copied"] < 12 * 8.1, "the reader copies its loader's arrays and no more"
    assert told[1][0]["copied"] < 0.1 and told[2][0]["copied"] < 0.1


def test_kept_leases_do_not_mix_with_later_batches(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        batches = (np.full(2**17, step) for step in range(20))
        kept = list(levada.Feed(batches, mesh=levada.Mesh(tp=2), access="private"))
        for step, array in enumerate(kept):
            array[rank] = -1
        tell(right=all(array[rank] == -1 and (np.delete(array, rank) == step).all() for step, array in enumerate(kept)))
        """,
    )
    assert [mine[0]["right"] for mine in told] == [True, True]


def test_empty_returns_ordinary_memory_if_engine_memory_is_full(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import threading
        from levada import _levada
        def made_on_a_thread_of_its_own(mebibytes):
            made = []
            thread = threading.Thread(target=lambda: made.append(levada.empty(mebibytes * 2**20, "uint8")))
            thread.start()
            thread.join()
            return made[0]
        def lies_in_the_engine(array):
            for line in open("/proc/self/maps"):
                begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
                if begin <= array.ctypes.data < end:
                    return "memfd:" in line
        def batches():
            held, more = made_on_a_thread_of_its_own(5), made_on_a_thread_of_its_own(5)
            tell(held=lies_in_the_engine(held), more=lies_in_the_engine(more))
            for step in range(3):
                more[:] = step
                yield {"x": more[:2**20]}
        job = _levada.meet(rank, 2, f"full-{os.getppid()}", bytes(32), 20.0, memory_bytes=8 * 2**20)
        for step, batch in enumerate(levada.Feed(batches(), levada.Mesh(tp=2), group=job)):
            assert batch["x"].shape == (2**20,) and (batch["x"] == step).all()
        tell(steps=step + 1)
        """,
    )
    assert told[0][0] == {"held": True, "more": False}
    assert told[0][-1] == told[1][-1] == {"steps": 3}


def test_a_forked_child_allocates_ordinary_memory(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        1,
        """
        def batches():
            for step in range(3):
                child = os.fork()
                if child == 0:
                    array = levada.empty(1000)
                    array[:] = step
                    os._exit(0 if (array == step).all() else 1)
                yield os.waitpid(child, 0)[1]
        tell(statuses=list(levada.Feed(batches())))
        """,
    )
    assert told[0][0]["statuses"] == [0, 0, 0]
