"""Connections of ranks over TCP, and strangers that connect to their ports."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from levada import _levada
from levada.base.errors import EngineError
from levada.job import connections, groups
from levada.job.connections import Acceptor, Address, call, describe_failure, keep_one_each
from levada.job.proofs import CALL_BYTES, CHALLENGE_BYTES, PROOF_BYTES, Caller, Listener

SECRET, GUESS = bytes(range(32)), bytes(32)
WITHIN = 20.0


@contextlib.contextmanager
def accepting(size: int = 4) -> Iterator[tuple[Acceptor, Address]]:
    acceptor = Acceptor("127.0.0.1", SECRET, size)
    try:
        yield acceptor, Address("here", "127.0.0.1", acceptor.port)
    finally:
        for each in acceptor.close().values():
            each.close()


def connect(where: Address) -> socket.socket:
    return socket.create_connection((where.address, where.port), WITHIN)


def receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count and (part := connection.recv(count - len(received))):
        received += part
    return received


def test_a_proof_is_accepted_once_and_only_from_a_rank() -> None:
    listener, other = Listener(SECRET), Listener(SECRET)
    caller = Caller(SECRET, 3, listener.greeting)
    answered = listener.answer(caller.call)
    assert answered is not None and answered[0] == 3 and caller.is_answered_by(answered[1])
    assert other.answer(caller.call) is None, "it is a recording of another connection"
    assert listener.answer(Caller(GUESS, 3, listener.greeting).call) is None
    assert not caller.is_answered_by(bytes(PROOF_BYTES))
    changed = [caller.call[:at] + bytes([caller.call[at] ^ 1]) + caller.call[at + 1 :] for at in range(CALL_BYTES)]
    cut = [caller.call[:at] for at in range(CALL_BYTES)]
    assert [listener.answer(each) for each in (*changed, *cut, caller.call + b"x")] == [None] * (2 * CALL_BYTES + 1)
    # A peer without the secret is not accepted if it echoes what the other end has sent.
    assert not caller.is_answered_by(caller.call[-PROOF_BYTES:])


def test_no_bytes_on_the_wire_reveal_the_secret() -> None:
    listener = Listener(SECRET)
    caller = Caller(SECRET, 1, listener.greeting)
    answered = listener.answer(caller.call)
    assert answered is not None
    crossed = listener.greeting + caller.call + answered[1]
    assert not any(SECRET[at : at + 6] in crossed for at in range(26))


def test_each_pair_of_ranks_shares_one_connection() -> None:
    with accepting() as (zero, at_zero), accepting() as (one, at_one):
        called = {1: call(at_one, SECRET, 0, WITHIN)}, {0: call(at_zero, SECRET, 1, WITHIN)}
        kept = keep_one_each(0, zero.close(), called[0])[1], keep_one_each(1, one.close(), called[1])[0]
        assert kept[0].getpeername() == kept[1].getsockname()
        kept[0].close()
        assert kept[1].recv(1) == b""
        kept[1].close()


@pytest.mark.parametrize("sizes", [[1, 1], [4], [2, 2], [3, 1, 2], [1, 4], [8] * 40, [1] * 20], ids=str)
def test_a_rank_watches_its_own_host_and_some_rank_of_each_other_host(sizes: list[int]) -> None:
    host_of = [host for host, size in enumerate(sizes) for _ in range(size)]
    ranks = range(len(host_of))
    watched = [connections.watched_by(rank, host_of) for rank in ranks]
    for rank in ranks:
        assert rank not in watched[rank] and len(set(watched[rank])) == len(watched[rank])
        assert all(rank in watched[other] for other in watched[rank]), "both ends know of a connection"
        assert {other for other in ranks if host_of[other] == host_of[rank]} <= {rank, *watched[rank]}
        assert {host_of[other] for other in (rank, *watched[rank])} == set(host_of)
    longest = max(len(each) for each in watched)
    assert longest <= max(sizes) - 1 + sum(-(-size // min(sizes)) for size in sizes)


def test_a_rank_describes_itself_to_a_group_in_64_bytes_whatever_the_release() -> None:
    for degree, engine in ((1, "auto"), (groups.MAX_DEGREE, "shm+c10d")):
        place = groups._Place(b"h" * 16, SECRET, degree, engine)
        sent = place.encode()
        assert len(sent) == 64 and groups._Place.decode(sent) == place
    later = sent[:52] + bytes([200]) + b"of a later release".ljust(11)[:11]
    assert groups._Place.decode(later) == place._replace(engine="another")


def test_one_of_eight_thousand_ranks_joins_in_seconds_of_processor_time() -> None:
    hosts, ranks_per_host = 1024, 8
    host_of = [host for host in range(hosts) for _ in range(ranks_per_host)]
    place = groups._Place(b"h" * 16, SECRET, 16, "auto").encode()
    sent = [number.to_bytes(16, "little") + place[16:] for number in host_of]
    greetings = [_levada.group_greeting(f"host{host}") for host in host_of]
    began = time.process_time()
    _levada.check_greetings(greetings)
    places = [groups._Place.decode(each) for each in sent]
    assert groups._number([each.host for each in places]) == host_of
    watched = connections.watched_by(5, host_of)
    for _ in watched:
        listener = Listener(SECRET)
        caller = Caller(SECRET, 5, listener.greeting)
        answered = listener.answer(caller.call)
        assert answered is not None and caller.is_answered_by(answered[1])
    seconds = time.process_time() - began
    print(f"a rank of {len(host_of)}: {seconds:.3f} s of processor time, {len(watched)} connections")
    assert len(watched) == hosts - 1 + ranks_per_host - 1 and seconds < 10


STRANGERS = {
    "silent": b"",
    "a browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + bytes(100),
    "zeros": bytes(CALL_BYTES),
    "half of a call": bytes(CALL_BYTES // 2),
    "a guess": Caller(GUESS, 1, bytes(CHALLENGE_BYTES)).call,
    "an old call": Caller(SECRET, 1, bytes(CHALLENGE_BYTES)).call,
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_cannot_join_or_delay_ranks(sent: bytes) -> None:
    with accepting() as (acceptor, where):
        strangers = [connect(where) for _ in range(20)]
        for each in strangers:
            each.sendall(sent)
        rank = call(where, SECRET, 2, WITHIN)
        assert list(acceptor.close()) == [2]
        for each in (*strangers, rank):
            each.close()


def test_hundreds_of_silent_strangers_leave_room_for_a_rank() -> None:
    with accepting() as (acceptor, where):
        strangers = [connect(where) for _ in range(400)]
        rank = call(where, SECRET, 2, WITHIN)
        assert list(acceptor.close()) == [2]
        for each in (*strangers, rank):
            each.close()


def test_a_stranger_is_dropped_after_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_PATIENCE", 0.2)
    with accepting() as (_, where), connect(where) as stranger:
        assert len(receive(stranger, CHALLENGE_BYTES)) == CHALLENGE_BYTES
        assert receive(stranger, 1) == b""


def test_a_rank_that_does_not_exist_is_dropped() -> None:
    with accepting(size=2) as (_, where), connect(where) as connection:
        connection.sendall(Caller(SECRET, 2, receive(connection, CHALLENGE_BYTES)).call)
        assert receive(connection, PROOF_BYTES) == b""


def test_an_impostor_that_listens_in_place_of_a_rank_is_rejected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = Address("here", "127.0.0.1", listener.getsockname()[1])

        def pose() -> None:
            connection = listener.accept()[0]
            connection.sendall(bytes(CHALLENGE_BYTES))
            receive(connection, CALL_BYTES)
            connection.sendall(bytes(PROOF_BYTES))

        poser = threading.Thread(target=pose)
        poser.start()
        with pytest.raises(EngineError, match="is not a rank of this job"):
            call(where, SECRET, 1, WITHIN)
        poser.join()


def test_a_listener_that_never_accepts_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="timed out"):
            call(Address("here", "127.0.0.1", listener.getsockname()[1]), SECRET, 1, 0.3)
        assert time.monotonic() - began < WITHIN


def test_a_lack_of_descriptors_is_not_reported_as_a_firewall() -> None:
    where = Address("host1", "10.0.0.2", 4000)
    text = describe_failure(0, 1, where, OSError(24, os.strerror(24)))
    assert "[Errno 24] Too many open files" in text and "ulimit -n" in text and "firewall" not in text
    assert "open the firewall" in describe_failure(0, 1, where, TimeoutError("timed out"))


def test_a_forked_child_does_not_keep_the_connections_of_its_rank() -> None:
    with accepting() as (acceptor, where):
        rank = call(where, SECRET, 2, WITHIN)
        (accepted,) = acceptor.close().values()
        child = os.fork()
        if child == 0:
            time.sleep(WITHIN)
            os._exit(0)
        try:
            accepted.close()
            rank.settimeout(WITHIN / 2)
            assert rank.recv(1) == b"", "the child holds it open"
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
            rank.close()
