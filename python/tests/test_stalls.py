"""When a host is lost because the path to it drops large packets, and when it is not, over simulated links."""

from __future__ import annotations

import contextlib
import os
import random
import socket

import pytest
from levada.job import stalls

PROBES = 1.0
"""Seconds between two probes, and between two checks of the connection."""


def lost_at(silence: float, cut: tuple[float, float], drops: bool, phases: tuple[float, float], rto: float) -> float | None:
    """Returns the time at which a host counts as lost, or None if the data arrive. Data are sent at time 0 over a link
    that is cut from cut[0] to cut[1], and that always drops data if `drops`. phases: the offsets of probes and
    checks."""
    up = lambda at: not cut[0] <= at < cut[1]  # noqa: E731
    probes = [phases[0] + PROBES * number for number in range(-3, 300)]
    tries, at = [0.0], rto  # the packet is sent at once, and again with exponential backoff
    while at < 300:
        tries.append(at)
        at += 2 * (at - tries[-2])
    arrives = None if drops else next(at for at in tries if up(at))
    trial, looked = None, phases[1] - PROBES
    for look in range(250):
        now = phases[1] + PROBES * look
        if arrives is not None and now >= arrives:
            return None
        answered = max(at for at in probes if at <= now and up(at))
        retries = len([each for each in tries if 0 < each <= now])
        info = stalls._Info(int(now >= 0), int(1000 * (now + 5)), retries)
        since = now - answered
        trial = stalls._next_trial(trial, info, since if since < 2 * PROBES + 0.5 else None, now, looked)
        looked = now
        if trial is not None and now - trial.since >= silence and trial.num_tries >= stalls._MIN_TRIES:
            return now
    raise AssertionError("nothing has happened")


@pytest.mark.parametrize("silence", [3, 6, 10, 60])
def test_a_cut_shorter_than_the_silence_limit_loses_no_host(silence: int) -> None:
    drawn = random.Random(silence)
    for _ in range(3000):
        begin = drawn.uniform(-PROBES, 1.5)
        cut = (begin, begin + drawn.uniform(0, silence))
        phases = (drawn.uniform(0, PROBES), drawn.uniform(0, PROBES))
        assert lost_at(silence, cut, False, phases, drawn.choice([0.2, 0.21, 0.3, 0.5])) is None, (cut, phases)


@pytest.mark.parametrize("silence", [3, 6, 10, 60])
def test_a_path_that_drops_data_loses_the_host_soon(silence: int) -> None:
    drawn = random.Random(silence)
    for _ in range(300):
        phases = (drawn.uniform(0, PROBES), drawn.uniform(0, PROBES))
        at = lost_at(silence, (0, 0), True, phases, drawn.choice([0.2, 0.21, 0.3, 0.5]))
        assert at is not None and silence <= at <= max(silence + 2 * PROBES, 10), (at, phases)


def test_probes_are_looked_up_once_for_each_address_with_data_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as opened:
        sockets = {}
        for address in ["127.0.0.1"] * 3 + ["127.0.0.2"] * 3 + ["127.0.0.3"] * 3:
            listener = opened.enter_context(socket.create_server((address, 0)))
            connection = opened.enter_context(socket.create_connection(listener.getsockname()))
            sockets[os.readlink(f"/proc/self/fd/{connection.fileno()}")] = connection.fileno()
        asked: list[str] = []
        watch = stalls.Stalls(sockets, 10)
        watch.find(lambda address: asked.append(address) or 0.0)
        assert asked == []  # all connections are idle
        busy = lambda connection: stalls._Info(connection.getpeername()[0] != "127.0.0.2", 0, 0)  # noqa: E731
        monkeypatch.setattr(stalls, "_info_of", busy)
        for _ in range(2):
            watch.find(lambda address: asked.append(address) or 0.0)
        assert asked == ["127.0.0.1", "127.0.0.3"] * 2
