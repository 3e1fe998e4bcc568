"""The `levada` command: the C++ command, and `levada feed` for a Python iterable."""

from __future__ import annotations

import sys

from levada import _levada
from levada.cli.feed import feed, names_callable
from levada.corpus.parquet import FORMATS
from levada.corpus.storage import REMOTE
from levada.corpus.tokenizers import open_tokenizer


def main() -> int:
    if sys.argv[1:2] == ["feed"] and names_callable(sys.argv[2:]):
        return feed(sys.argv[2:])
    return _levada.command(["levada", *sys.argv[1:]], [sys.executable, "-m", "levada"], open_tokenizer, FORMATS, REMOTE)


if __name__ == "__main__":
    sys.exit(main())
