"""Evaluation: every sample once, on any mesh, with results in the order of the source."""

from __future__ import annotations

import pathlib

import ranks


def test_every_row_is_evaluated_once_on_any_mesh_and_gathered_in_order(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        """
        import random
        for seed in range(30):
            chance = random.Random(seed)
            count, size = chance.randint(1, 40), chance.randint(1, 6)
            rows = [list(range(begin, min(begin + size, count))) for begin in range(0, count, size)]
            batches = [{"x": np.array(each), "names": [f"n{i}" for i in each], "loss_mask": np.ones(len(each))} for each in rows]
            mesh = levada.Mesh(**chance.choice([dict(dp=4), dict(dp=2, tp=2), dict(tp=2, dp=2), dict(tp=4)]))
            tail = chance.choice(["pad", "short"])
            readers = chance.choice(["one", "all", "dp"])
            source = chance.choice([list, iter])(batches)
            feed = levada.Feed(source, mesh, tail=tail, readers=readers, iterate=chance.choice(["thread", "inline"]))
            got, names, alone = [], [], 0
            for batch in feed:
                assert len(batch["x"]) == len(batch["names"]), batch
                assert tail == "short" or len(batch["x"]) > 0
                assert batch["loss_mask"].sum() == feed.valid_rows
                alone += feed.valid_rows
                together = feed.gather({"x": batch["x"] * 1, "names": batch["names"]})
                got += together["x"].tolist()
                names += together["names"]
            right = got == list(range(count)) and names == [f"n{i}" for i in range(count)]
            tell(seed=seed, right=right, got=got, count=count)
        """,
    )
    for mine in told:
        assert len(mine) == 30 and all(each["right"] for each in mine), mine


def test_rows_of_a_split_batch_are_gathered_without_padding(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        for tail in ("pad", "short"):
            batches = [{"x": np.arange(8)}, {"x": np.arange(8, 13)}]
            feed = levada.Feed(batches, divide="split", batch_size=4, tail=tail)
            tell(got=[feed.gather(batch["x"] * 2).tolist() for batch in feed])
        feed = levada.Feed([{"x": np.arange(4)}] * 2)
        for batch in feed:
            try: feed.gather(batch["x"][:1])
            except levada.InvalidArgument as error: tell(text=str(error))
        """,
    )
    for rank, mine in enumerate(told):
        assert [each["got"] for each in mine[:2]] == [[list(range(0, 16, 2)), list(range(16, 26, 2))]] * 2
        assert "the batch has 4 rows, but there are results of 1" in mine[2]["text"]


def test_results_that_are_not_one_for_each_row_are_refused(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        class Batches:
            def __len__(self): return 4
            def __getitem__(self, i): return np.arange(8 * i, 8 * i + 8)
        def text_of(source, results):
            try: return sum([source.gather(results(batch)).tolist() for batch in source], [])
            except levada.InvalidArgument as error: return str(error)
        tell(got=text_of(levada.DataLoader(Batches(), batch_size=None), lambda batch: batch * 1))
        loader = levada.DataLoader(Batches(), batch_size=None)
        tell(got=sum([loader.gather(np.array([batch.sum()])).tolist() for batch in loader], []))
        tell(got=text_of(levada.DataLoader(Batches(), batch_size=2, collate_fn=np.concatenate), lambda batch: batch * 1))
        lists = [[0, 1], [2, 3]]
        tell(got=text_of(levada.DataLoader(Batches(), batch_sampler=lists, collate_fn=np.concatenate), lambda batch: batch * 1))
        images = [{"images": [np.zeros((3, 10))] * 8, "ids": list(range(8))}] * 4
        for tail in ("drop", "pad"): tell(got=text_of(levada.Feed(images, tail=tail), lambda batch: np.array(batch["ids"])))
        """,
    )
    for mine in told:
        rows, sums, crops, lists, *images = [each["got"] for each in mine]
        assert rows == list(range(32)) and sums == [28, 92, 156, 220]
        assert "the batch has 2 rows, but there are results of 16" in crops and "has 2 rows, but there are results of 16" in lists
        assert all("the batch has 3 rows, but there are results of 8" in each for each in images)


def test_lists_whose_elements_are_as_many_as_the_rows_are_refused(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        def text_of(batch):
            try: return [repr(each) for each in levada.Feed([batch], divide="split")]
            except levada.InvalidArgument as error: return str(error)
        ids, square = np.arange(2), [np.zeros((2, 4)), np.ones((2, 4))]
        captions = lambda *counts: [tuple(f"{row}.{at}" for at in range(count)) for row, count in enumerate(counts)]
        for batch in ({"id": ids, "boxes": square}, {"id": ids, "boxes": [np.zeros((2, 4)), np.ones((7, 4))]},
                      {"id": ids, "captions": captions(2, 2)}, {"id": ids, "t": [{"b": square[0]}, {"b": square[1]}]},
                      [{"x": np.zeros((4, 2)), "y": 1}] * 3, {"id": [1, 2], "captions": captions(2, 2)}):
            tell(text=text_of(batch))
        tell(got=text_of({"id": ids, "boxes": [np.zeros((5, 1)), np.ones((3, 1))], "captions": captions(2, 3)}))
        tell(got=text_of([ids, np.arange(2, 4)]))
        tell(got=text_of([{"x": ids}, {"x": ids}]))
        for views in (lambda rows: [np.zeros(rows), np.ones(rows)], lambda rows: [["a"] * rows, ["b"] * rows],
                      lambda rows: [np.full((rows + 1 + row, 1), row) for row in range(rows)]):
            batches = [{"id": np.arange(rows), "views": views(rows)} for rows in (4, 2)]
            if len(batches[0]["views"]) == 4: batches[1]["views"] = [np.full((2, 1), row) for row in range(2)]
            feed = levada.Feed(batches, divide="split")
            tell(lengths=[[len(batch["views"]), sum(map(len, batch["views"]))] for batch in feed])
        """,
    )
    for rank, mine in enumerate(told):
        for each in (*mine[:4], mine[5]):
            assert "cannot tell whether the outer or the inner ones are the rows" in each["text"], each
        assert "is a list of samples" in mine[4]["text"]
        assert f"('{rank}.0', '{rank}.1'" in mine[6]["got"][0] and f"[[{rank}.]" in mine[6]["got"][0]
        assert mine[7]["got"] == [f"[array([{rank}]), array([{rank + 2}])]"]
        assert mine[8]["got"] == [f"[{{'x': array([{rank}])}}, {{'x': array([{rank}])}}]"]
        fields, lists, boxes = [each["lengths"] for each in mine[9:]]
        assert fields == lists == [[2, 4], [2, 2]] and boxes == [[2, 11 + 4 * rank], [1, 2]], boxes


def test_lists_and_arrays_of_text_are_cut_in_every_container_and_without_a_tensor(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import collections, dataclasses, types, typing
        class Pair(typing.NamedTuple):
            x: typing.Any
            name: typing.Any
        @dataclasses.dataclass(frozen=True)
        class Record:
            x: typing.Any
            name: typing.Any
        class Own(dict): pass
        x, part = np.arange(8).reshape(4, 2), slice(rank * 2, rank * 2 + 2)
        names = list("abcd")
        kinds = [dict, collections.OrderedDict, Own, Pair, Record, types.SimpleNamespace,
                 lambda **items: collections.UserDict(items), lambda **items: collections.defaultdict(list, items)]
        def fields(item):
            if isinstance(item, (dict, collections.UserDict)): return dict(item)
            return item._asdict() if isinstance(item, tuple) else vars(item)
        for kind in kinds:
            for name in (names, tuple(names), np.array(names), np.array(names, "S"), np.array([names, names]).T,
                         np.array(range(4), "M8[D]")):
                item = kind(x=x, name=name)
                got = next(iter(levada.Feed([{"deep": item}], divide="split")))["deep"]
                values, wanted = fields(got), fields(item)
                right = type(got) is type(item) and all(np.array_equal(values[key], wanted[key][part]) for key in wanted)
                tell(right=right and type(values["name"]) is type(name), got=repr(got))
                assert len(name) == 4 and fields(item)["name"] is name
        for item, wanted in (({"ids": [1, 2, 3, 4], "name": tuple(names)}, {"ids": [1, 2, 3, 4][part], "name": tuple(names)[part]}),
                             (names, names[part]), ([{"a": 1}, {"a": 2}], [{"a": 1 + rank}]), ("text", "text")):
            got = next(iter(levada.Feed([item], divide="split")))
            tell(right=got == wanted, got=repr(got))
        """,
    )
    for mine in told:
        assert len(mine) == 8 * 6 + 4
        assert all(each["right"] for each in mine), [each for each in mine if not each["right"]]


def test_lists_that_cannot_be_cut_are_refused_by_the_name_of_their_field(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import collections
        @levada.register
        class Own(collections.abc.Mapping):
            def __init__(self, items): self.items_ = dict(items)
            def __getitem__(self, key): return self.items_[key]
            def __iter__(self): return iter(self.items_)
            def __len__(self): return len(self.items_)
        class Names(list): pass
        x = np.arange(4)
        tell(text=str(len(list(levada.Feed([Own({"x": x})], divide="split")))))
        for item in ({"x": x, "own": Own({"names": ["a"] * 4})}, {"x": x, "parts": [slice(0, 1)] * 4},
                     {"x": x, "objects": np.array([1, "a", None, 2], object)}, {"x": x, "names": Names("abcd")},
                     {"x": x, "names": np.array(list("abc"))}, {"deep": collections.OrderedDict(x=x, names=["a"])},
                     {"ids": [1, 2], "names": ["a"]}, [("a", "b"), ("c", "d")]):
            for allow_pickle in (False, True):
                try: list(levada.Feed([item], divide="split", allow_pickle=allow_pickle)); tell(text="cut")
                except levada.InvalidArgument as error: tell(text=str(error))
        """,
    )
    wanted = ["own of item 0 is an object of class Own with lists", "element 0 of parts of item 0 has type slice"]
    wanted += ["objects of item 0 is an object of class ndarray that crosses only as a whole", "names of item 0 is an object of class Names"]
    wanted += ["names of item 0 is an array of 3", "deep.names of item 0 is a list of 1", "names of item 0 is a list of 1"]
    wanted += ["item 0 is a list of lists without a tensor"]
    for mine in told:
        assert mine[0]["text"] == "1"
        for place, (plain, pickled) in enumerate(zip(mine[1::2], mine[2::2], strict=True)):
            assert wanted[place] in plain["text"] and wanted[place] in pickled["text"], (plain, pickled)


def test_the_rows_of_a_batch_of_lists_are_counted(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        for batches, tail in (([["a", "b"], ["c", "d"], ["e"]], "pad"), ([["a", "b"], ["c", "d"], ["e"]], "short"),
                              ([{"text": ["a", "b"]}, {"text": ["c", "d"]}, {"text": ["e"]}], "pad")):
            feed = levada.Feed(batches, mesh="dp=2", tail=tail)
            got = []
            for batch in feed:
                texts = batch["text"] if isinstance(batch, dict) else batch
                got += feed.gather([text.upper() for text in texts])
            tell(got=got)
        feed = levada.Feed([[("a", "b", "c"), ("x", "y", "z")]], mesh="tp=2")  # two columns, as default_collate() makes them
        for batch in feed: tell(got=feed.valid_rows)
        """,
    )
    assert [[each["got"] for each in mine] for mine in told] == [[list("ABCDE")] * 3 + [3]] * 2


def test_lists_are_cut_along_the_rows_of_the_batch(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import random
        for seed in range(20):
            chance = random.Random(seed)
            rows = chance.choice([4, 6, 8])
            item = {"x": np.arange(rows)}
            for name in "abc":
                item[name] = chance.choice([
                    [f"{i}é" for i in range(rows)], tuple(i * 1.5 for i in range(rows)), [[i] * i for i in range(rows)],
                    {"deep": [None if i % 2 else i for i in range(rows)]}, [np.arange(rows), np.arange(rows) + 1], "text", 7])
            def part(value):
                begin, end = rank * rows // 2, (rank + 1) * rows // 2
                if isinstance(value, np.ndarray): return value[begin:end].tolist()
                if isinstance(value, dict): return {key: part(each) for key, each in value.items()}
                if isinstance(value, list) and isinstance(value[0], np.ndarray): return [part(each) for each in value]
                return value[begin:end] if isinstance(value, (list, tuple)) else value
            def plain(value):
                if isinstance(value, np.ndarray): return value.tolist()
                if isinstance(value, dict): return {key: plain(each) for key, each in value.items()}
                return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else value
            got = plain(next(iter(levada.Feed([item], divide="split"))))
            tell(right=got == part(item), got=repr(got), wanted=repr(part(item)))
        try: list(levada.Feed([{"x": np.arange(4), "names": ["a", "b", "c"]}], divide="split"))
        except levada.InvalidArgument as error: tell(text=str(error))
        """,
    )
    for mine in told:
        assert all(each["right"] for each in mine[:20]), [each for each in mine[:20] if not each["right"]]
        assert "names of item 0 is a list of 3, but the batch has 4 rows" in mine[20]["text"]
