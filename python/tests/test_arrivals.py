"""The ranks that a wait for a process group names, based on marks in the group's store."""

from __future__ import annotations

from levada.job.arrivals import Arrivals


class Store(dict[str, bytes]):
    """The part of a torch.distributed store that marks need."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


def wait_of(store: Store, rank: int, call: int = 1) -> Arrivals:
    return Arrivals(store, rank, 3, "to join its group", call)


def test_the_error_names_a_rank_that_has_not_arrived() -> None:
    store = Store()
    with wait_of(store, 0), wait_of(store, 2) as waiting:
        assert waiting.describe().endswith("to join its group for rank(s) 1 of its 3")


def test_a_rank_of_an_earlier_call_does_not_count_as_arrived() -> None:
    store = Store()
    for rank in range(3):
        with wait_of(store, rank):
            pass
    with wait_of(store, 0, 2), wait_of(store, 1, 2) as waiting:
        assert waiting.describe().endswith("for rank(s) 2 of its 3")


def test_marks_of_an_earlier_attempt_are_not_mistaken_for_waiting_ranks() -> None:
    store = Store()
    for rank in range(3):
        with wait_of(store, rank):
            pass
    with wait_of(store, 1), wait_of(store, 2) as waiting:
        said = waiting.describe()
    assert "for rank(s) 0 of its 3, which have done so already, perhaps in an earlier attempt of the job" in said, said


def test_marks_of_an_attempt_that_was_killed_while_it_waited_are_doubted() -> None:
    store = Store()
    waits = [wait_of(store, rank) for rank in range(3)]
    for each in waits:
        each.__enter__()
    for each in waits:
        each.__exit__(RuntimeError)
    with wait_of(store, 2) as waiting:
        assert "though all its 3 ranks have arrived, or arrived in an earlier attempt" in waiting.describe()
