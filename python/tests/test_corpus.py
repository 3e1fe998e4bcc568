"""A Corpus in a feed: its files, epochs and states."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import levada
import pytest
import ranks


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """A text with 63 samples of 16 tokens."""
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{i:04}" for i in range(255)))
    return path


def feed_of(path: pathlib.Path, **options: Any) -> levada.Feed:
    return levada.Feed(levada.Corpus(path, seq_length=16, shuffle=True, seed=1, **options, tokenizer="bytes"), batch_size=8)


def firsts(feed: levada.Feed) -> list[list[int]]:
    return [batch["tokens"][:, 0].tolist() for batch in feed]


@pytest.mark.long
@pytest.mark.usefixtures("few_descriptors")
def test_a_folder_of_more_files_than_descriptors_is_read_in_every_epoch(tmp_path: pathlib.Path) -> None:
    for i in range(1500):
        (tmp_path / f"{i:04}.jsonl").write_text('{"text": "' + f"{i:015}" + '"}\n')
    corpus = levada.Corpus(tmp_path, seq_length=16, cache_dir=tmp_path / "cache", tokenizer="bytes")
    feed = levada.Feed(corpus, batch_size=50)
    for epoch in range(3):
        feed.set_epoch(epoch)
        assert sum(len(batch["tokens"]) for batch in feed) == 1450  # the last token is only a label
    assert len(os.listdir("/proc/self/fd")) < 200


def test_bad_lines_are_counted_warned_about_and_limited(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('{"text": "a text of some length"}\n' * 3 + "bad\n")
    with pytest.warns(RuntimeWarning, match=r"1 lines of the text cannot be used and are left out \(skip_bad=True\), the first at"):
        corpus = levada.Corpus(path, seq_length=4, skip_bad=True, max_bad=0.25, tokenizer="bytes")
        assert corpus.bad_lines == 1 and corpus.bad_places == [f"{path}:4"]
    with pytest.raises(levada.SourceError, match=r"some.jsonl: 1 of 4 lines cannot be used, but at most 0.2 of a text's"):
        levada.Corpus(path, seq_length=4, skip_bad=True, max_bad=0.2, tokenizer="bytes").open()
    for wrong in (-1, 2, "few"):
        with pytest.raises(levada.InvalidArgument, match="max_bad"):
            levada.Corpus(path, seq_length=4, skip_bad=True, max_bad=wrong, tokenizer="bytes").open()  # type: ignore[arg-type]


def test_epochs_share_open_files(path: pathlib.Path) -> None:
    corpus = levada.Corpus(path, seq_length=16, shuffle=True, seed=1, tokenizer="bytes")
    opened = corpus.open()
    feed = levada.Feed(corpus, batch_size=9)
    epochs = []
    for epoch in range(5):
        feed.set_epoch(epoch)
        epochs += firsts(feed)
        assert corpus.open() is opened
    whole = levada.Corpus(path, seq_length=16, shuffle=True, seed=1, epochs=5, tokenizer="bytes")
    assert epochs == firsts(levada.Feed(whole, batch_size=9))


def test_a_state_resumes_in_its_epoch(path: pathlib.Path) -> None:
    feed = feed_of(path)
    feed.set_epoch(2)
    whole = firsts(feed)
    for step in range(len(whole)):
        feed.set_epoch(2)
        items = iter(feed)
        for _ in range(step):
            next(items)
        state = feed.state_dict()
        assert state["epoch"] == 2
        resumed = feed_of(path)
        resumed.load_state_dict(state)
        assert firsts(resumed) == whole[step:]
        resumed = feed_of(path)
        resumed.load_state_dict(state)
        resumed.set_epoch(2)
        assert firsts(resumed) == whole[step:]


def test_a_state_at_the_end_of_an_epoch_resumes_with_the_next(path: pathlib.Path) -> None:
    feed = feed_of(path)  # 63 samples, so seven are left over
    feed.set_epoch(1)
    firsts(feed)
    state = feed.state_dict()
    feed.set_epoch(2)
    resumed = feed_of(path)
    resumed.load_state_dict(state)
    assert firsts(resumed) == []
    resumed.load_state_dict(state)
    resumed.set_epoch(2)
    assert firsts(resumed) == firsts(feed)


def test_a_state_of_an_epoch_that_is_not_set_is_refused(path: pathlib.Path) -> None:
    feed = feed_of(path)
    feed.set_epoch(1)
    batches = iter(feed)
    next(batches)
    state = feed.state_dict()
    for epoch, words in ((2, "in epoch 1, and set_epoch.. says 2"), (0, "but the data ends with sample 62")):
        resumed = feed_of(path)
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)
        with pytest.raises(levada.InvalidArgument, match=words):
            firsts(resumed)


def test_a_state_past_the_end_of_the_data_is_refused(path: pathlib.Path) -> None:
    feed = feed_of(path, epochs=3)
    batches = iter(feed)
    for _ in range(20):
        next(batches)
    state = feed.state_dict()
    shorter = feed_of(path)
    shorter.load_state_dict(state)
    with pytest.raises(levada.InvalidArgument, match="at sample 160, but the data ends with sample 62"):
        firsts(shorter)


@pytest.fixture
def mixes(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """Two mixes of 80 samples of 8 tokens: the last token of a source is only a label."""
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name}{i:06}"}}\n' for i in range(41)))
    paths = []
    for weights in ((3, 1), (1, 3)):
        sources = [{"path": f"{name}.jsonl", "weight": weight} for name, weight in zip("ab", weights, strict=True)]
        paths.append(tmp_path / f"mix{weights[0]}.json")
        paths[-1].write_text(json.dumps({"sources": sources}))
    return paths


def test_epochs_after_a_change_of_weights_continue_the_mix_in_any_number_of_processes(mixes: list[pathlib.Path]) -> None:
    def feed(**options: Any) -> levada.Feed:
        return levada.Feed(levada.Corpus(mixes[1], seq_length=8, resume_weights=True, **options, tokenizer="bytes"), batch_size=1)

    def resumed(state: dict[str, Any], epoch: int) -> levada.Feed:
        other = feed()
        other.load_state_dict(state)
        other.set_epoch(epoch)
        return other

    before = levada.Feed(levada.Corpus(mixes[0], seq_length=8, tokenizer="bytes"), batch_size=1)
    batches = iter(before)
    for _ in range(40):
        next(batches)
    state = before.state_dict()
    whole = feed(epochs=3)
    whole.load_state_dict(state)
    samples = [batch["tokens"].tolist() for batch in whole]
    expected = [samples[:40], samples[40:120], samples[120:]]

    same = feed()
    same.load_state_dict(state)
    ends = []
    for epoch in range(3):
        same.set_epoch(epoch)
        assert [batch["tokens"].tolist() for batch in same] == expected[epoch]
        ends.append(same.state_dict())
    for epoch in (1, 2):
        assert [batch["tokens"].tolist() for batch in resumed(ends[epoch - 1], epoch)] == expected[epoch]
        same.set_epoch(epoch)
        iterator = iter(same)
        for step in range(2):
            assert [batch["tokens"].tolist() for batch in resumed(same.state_dict(), epoch)] == expected[epoch][step:]
            next(iterator)
    # Loading a state of a fresh run erases that history.
    same.load_state_dict(feed().state_dict())
    same.set_epoch(1)
    fresh = feed()
    fresh.set_epoch(1)
    assert [batch["tokens"].tolist() for batch in same] == [batch["tokens"].tolist() for batch in fresh]


def test_ranks_without_files_continue_a_mix_in_the_same_way(tmp_path: pathlib.Path, mixes: list[pathlib.Path]) -> None:
    for readers in ("one", "all"):
        told = ranks.succeed(
            tmp_path,
            2,
            f"""
            mesh = levada.Mesh(dp=2)
            def feed(mix):
                corpus = levada.Corpus(mix, seq_length=8, resume_weights=True, cache_dir={str(tmp_path / "cache")!r}, tokenizer="bytes")
                return levada.Feed(corpus, mesh, batch_size=1, readers={readers!r})
            def tokens(feed):
                return [batch["tokens"].tolist() for batch in feed]
            before = feed({str(mixes[0])!r})
            batches = iter(before)
            for _ in range(20): next(batches)
            state = before.state_dict()
            before.close()
            same = feed({str(mixes[1])!r})
            same.load_state_dict(state)
            tokens(same)
            end = same.state_dict()
            same.set_epoch(1)
            restarted = feed({str(mixes[1])!r})
            restarted.load_state_dict(end)
            restarted.set_epoch(1)
            expected = tokens(restarted)
            iterator = iter(same)
            at_start = same.state_dict()
            tell(steps=len(expected), same=list(batch["tokens"].tolist() for batch in iterator) == expected, state=repr(at_start))
            """,
        )
        assert [each[-1]["same"] for each in told] == [True, True] and told[0][-1]["steps"] == 40
        assert told[0][-1]["state"] == told[1][-1]["state"]


def test_an_uncountable_number_of_epochs_is_refused(path: pathlib.Path) -> None:
    for epochs in (-1, 2**62, 2**70):
        with pytest.raises(levada.InvalidArgument, match="epochs must be 0, for no end"):
            feed_of(path, epochs=epochs)
    with pytest.raises(levada.InvalidArgument, match="are too many to count"):
        firsts(feed_of(path, epochs=2**61))
    feed = feed_of(path)
    for epoch in (-1, 2**62):
        with pytest.raises(levada.InvalidArgument, match="epoch must be from 0"):
            feed.set_epoch(epoch)
    feed.set_epoch(2**61)
    with pytest.raises(levada.InvalidArgument, match="are too many to count"):
        firsts(feed)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("seed", -1, "a whole number from 0 on, got -1"),
        ("shuffle", 7, "True or False, got 7"),
        ("seq_length", 0, "at least 1 token, got 0"),
        ("cache_size", "200GB", "a number of bytes, or None, got '200GB'"),
        ("epochs", 2.0, "a whole number, got 2.0"),
        ("reset_position_ids", 1, "True or False, got 1"),
        ("packing", 3, "a str, got 3"),
    ],
)
def test_an_option_of_another_type_is_refused_by_its_name(path: pathlib.Path, name: str, value: Any, expected: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=f"^{name} must be {expected}$"):
        levada.Corpus(path, **{"seq_length": 16, name: value}, tokenizer="bytes").open()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("packing", "best_fit", "cut, best-fit, documents, got 'best_fit'"),
        ("part", "eval", "train, valid, test, got 'eval'"),
        ("dtype", "int16", "int64, int32, got 'int16'"),
        ("tensors", "jax", "numpy, torch, got 'jax'"),
    ],
)
def test_an_unknown_choice_is_refused_by_the_constructor(name: str, value: str, expected: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=f"^{name} must be one of {expected}$"):
        levada.Corpus("no such file", **{name: value})  # type: ignore[arg-type]


def test_a_path_with_a_zero_byte_is_refused(path: pathlib.Path) -> None:
    for options in ({"paths": f"{path}\0.jsonl"}, {"paths": path, "cache_dir": "cache\0"}):
        with pytest.raises(levada.InvalidArgument, match=r"the path \S+ has a zero byte"):
            levada.Corpus(seq_length=16, **options, tokenizer="bytes").open()


def test_a_corpus_smaller_than_a_step_is_an_error(path: pathlib.Path) -> None:
    samples = len(levada.Corpus(path, seq_length=16, tokenizer="bytes"))
    message = f"one step takes {samples + 1} samples, but the corpus has only {samples}; lower batch_size or"
    with levada.Feed(levada.Corpus(path, seq_length=16, tokenizer="bytes"), batch_size=samples + 1) as feed:
        assert len(feed) == 0
        with pytest.raises(levada.InvalidArgument, match=message):
            next(iter(feed))
    with levada.Feed(levada.Corpus(path, seq_length=16, epochs=2, tokenizer="bytes"), batch_size=samples + 1) as feed:
        assert len(list(feed)) == 1
    with levada.Feed(levada.Corpus(path, seq_length=16, tokenizer="bytes"), batch_size=samples + 1, tail="short") as feed:
        assert len(list(feed)) == 1


def test_a_cache_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.txt").write_text("some text " * 9)
    (tmp_path / "none").write_text("a file where a folder would be")
    corpus = levada.Corpus(tmp_path / "a.txt", seq_length=16, cache_dir=tmp_path / "none" / "cache", tokenizer="bytes")
    with pytest.raises(levada.SourceError, match=r"cannot create the token cache .*name another folder .*cache_dir="):
        len(corpus)


def test_text_is_tokenized_into_the_cache_folder_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.txt").write_text("some text " * 9)
    cache = tmp_path / "cache"
    corpus = levada.Corpus(tmp_path / "a.txt", seq_length=16, cache_dir=cache, tokenizer="bytes")
    assert corpus.tokens == 91 and corpus.documents == 1
    (made,) = (cache / "tokens").glob("*.bin")
    before = made.stat()
    assert levada.Corpus(tmp_path / "a.txt", seq_length=16, cache_dir=cache, tokenizer="bytes").digest == corpus.digest
    assert (made.stat().st_ino, made.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_cache_in_the_data_folder_is_not_read_as_data(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.txt").write_text("some text " * 9)
    corpora = [levada.Corpus(tmp_path, seq_length=16, cache_dir=tmp_path / "cache", tokenizer="bytes") for _ in range(2)]
    assert [corpus.tokens for corpus in corpora] == [91, 91]


def test_a_full_cache_evicts_unused_tokens(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name * 100)

    def open_and_close(name: str) -> None:
        len(levada.Corpus(tmp_path / f"{name}.txt", seq_length=16, cache_dir=cache, cache_size=300, tokenizer="bytes"))

    def kept() -> list[str]:
        entries = [json.loads(each.read_text()) for each in (cache / "tokens").glob("*.json")]
        return sorted(pathlib.Path(each["source"]).stem for each in entries)

    open_and_close("a")
    assert kept() == ["a"]
    used = levada.Corpus(tmp_path / "b.txt", seq_length=16, cache_dir=cache, cache_size=1, tokenizer="bytes")
    assert len(used) == 6 and kept() == ["b"]
    assert "the token cache" in capfd.readouterr().err
    assert sum(len(batch["tokens"]) for batch in levada.Feed(used, batch_size=1)) == 6


def test_an_error_escapes_control_characters(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a\x1b[2J.jsonl"
    path.write_text('{"\\u001b]0;x\\u0007": 1}\n')
    with pytest.raises(levada.SourceError, match=r"a\\x1b\[2J.jsonl:1: .*\\x1b\]0;x\\x07"):
        len(levada.Corpus(path, tokenizer="bytes"))
    error = levada.InvalidArgument("no field \x1b[2J\u202e in \udcff:\n\tline 2")
    assert str(error) == "no field \\x1b[2J\\u202e in \\udcff:\n\tline 2"
    assert str(levada.SourceError()) == ""


@pytest.mark.long
def test_ranks_wait_beyond_the_timeout_for_a_reader_that_tokenizes(tmp_path: pathlib.Path) -> None:
    (tmp_path / "c.txt").write_text("0123456789" * 100)
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        levada.join()  # with more time than a pass has
        corpus = levada.Corpus({str(tmp_path / "c.txt")!r}, seq_length=16, cache_dir={str(tmp_path / "cache")!r}, tokenizer="bytes")
        opened = corpus.open
        corpus.open = lambda: (time.sleep(6.0), opened())[1]
        for batch in (feed := levada.Feed(corpus, batch_size=4, timeout=3.0)): pass
        tell(steps=feed.step)
        """,
    )
    assert told == [[{"steps": 7}], [{"steps": 7}]]


def test_the_death_of_a_tokenizing_reader_ends_the_wait_of_the_others(tmp_path: pathlib.Path) -> None:
    (tmp_path / "c.txt").write_text("0123456789" * 100)
    outcome = ranks.run(
        tmp_path,
        2,
        f"""
        levada.join()
        corpus = levada.Corpus({str(tmp_path / "c.txt")!r}, seq_length=16, cache_dir={str(tmp_path / "cache")!r}, tokenizer="bytes")
        corpus.open = lambda: os._exit(3)
        try:
            for batch in levada.Feed(corpus, batch_size=4): pass
        except levada.PeerLost as error:
            tell(lost=error.rank)
        """,
    )
    assert outcome.status != 0 and outcome.told[1] == [{"lost": 0}]


def in_fork(act: Callable[[], bool]) -> bool:
    """Returns whether act() returns True within a minute in a forked process, which then exits without any cleanup."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        status = 0 if act() else 2
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(status)


def test_a_forked_process_and_its_children_open_the_corpus_themselves(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    corpus = levada.Corpus(path, seq_length=16, tokenizer="bytes", cache_dir=tmp_path)
    assert len(corpus) == 63
    assert in_fork(lambda: len(corpus) == 63 and in_fork(lambda: len(corpus) == 63) and len(corpus) == 63)
    assert len(corpus) == 63


def test_a_forked_process_drops_its_parents_corpus_at_once(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    corpora = [levada.Corpus(path, seq_length=16, tokenizer="bytes", cache_dir=tmp_path)]
    assert len(corpora[0]) == 63
    assert in_fork(lambda: corpora.clear() is None)
    assert len(corpora[0]) == 63
