"""Stores that change between exchanges: an exchange delivers the holders' current contents, or names the ranks that
differ."""

from __future__ import annotations

import pathlib

import ranks


def test_an_update_on_one_holder_is_refused_until_all_holders_have_it(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
        from levada import exchange
        store = exchange.Store(name="s")
        def of(version): return exchange.SampleBatch(["a"], {"x": np.arange(3.0) + 100 * version}, {"x": [3]})
        def attempt(to):
            try:
                exchange.redistribute(store, {to: ["a"]}, ["x"], timeout=20)
            except levada.InvalidArgument as error:
                tell(error=str(error))
        if rank == 0: store.store(of(0))
        attempt(1)
        if rank == 0: store.update(of(1))
        attempt(1)
        attempt(2)
        if rank == 1: store.remove(["a"])
        attempt(1)
        attempt(2)
        tell(has=store.get(["a"])["x"].tolist())
        if rank == 2: store.update(of(2))
        attempt(2)
        """,
    )
    text = "sample a, key x has other contents on rank 1 than on rank 0"
    for of_rank in told:
        refused, again, has, last = of_rank
        assert text in refused["error"] and text in again["error"]
        assert has["has"] == [100.0, 101.0, 102.0]
        assert "other contents on rank 2 than on ranks 0, 1" in last["error"]


def test_random_changes_between_exchanges_are_delivered_or_refused(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
        import random
        from levada import exchange
        ids, wrong, refusals = ["a", "b", "c"], [], 0
        def of(id, version): return exchange.SampleBatch([id], {"x": np.full(4, 10 * version + ord(id))}, {"x": [4]})
        for seed in range(40):
            drawn, store, version = random.Random(seed), exchange.Store(name=f"{seed}"), 1
            stores = [{id: 1 for id in ids}, {}, {}]  # each rank's, by id: the version
            if rank == 0:
                for id in ids: store.store(of(id, 1))
            for number in range(8):
                at, id, what = drawn.randrange(3), drawn.choice(ids), drawn.choice(["update", "remove", "store anew", "nothing"])
                if id in stores[at] and what != "nothing":
                    if what == "update":
                        version += 1
                        stores[at][id] = version
                        if at == rank: store.update(of(id, version))
                    elif at > 0 or what == "store anew":
                        del stores[at][id]
                        if at == rank: store.remove([id])
                        if what == "store anew":
                            stores[at][id] = 1
                            if at == rank: store.store(of(id, 1))
                wants = {to: drawn.sample(ids, drawn.randrange(4)) for to in range(3)}
                asked = {id for some in wants.values() for id in some}
                differ = any(len({held[id] for held in stores if id in held}) > 1 for id in asked)
                try:
                    exchange.redistribute(store, wants, ["x"], timeout=20)
                    refused = False
                except levada.InvalidArgument as error:
                    refused = "other contents on rank" in str(error)
                if refused != differ: wrong.append([seed, number, refused])
                refusals += refused
                if not refused:
                    for to, some in wants.items():
                        for id in some: stores[to].setdefault(id, stores[0][id])
                for id, held in stores[rank].items():
                    if store.get([id])["x"][0] != 10 * held + ord(id): wrong.append([seed, number, id])
        tell(wrong=wrong, refusals=refusals)
        """,
    )
    assert all(each["wrong"] == [] and each["refusals"] > 20 for (each,) in told), told
