"""The `levada` command: the command of the C++ core, `levada feed` of a Python iterable, and `levada run`, which starts the
ranks of a Python script."""

from __future__ import annotations

import argparse
import sys

from levada import _levada
from levada.base.errors import InvalidArgument
from levada.cli.feed import feed, names_callable
from levada.cli.output import Parser
from levada.corpus.parquet import FORMATS
from levada.corpus.storage import REMOTE
from levada.corpus.tokenizers import open_tokenizer


def run(arguments: list[str]) -> int:
    """`levada run -n 4 script.py [ARGS]`: starts ranks on this machine and waits for them."""
    parser = Parser(
        prog="levada run",
        description="Start ranks of a Python script on this machine; each joins the job by itself.",
        epilog="Example: levada run -n 4 train.py --epochs 3",
    )
    parser.add_argument("-n", "--ranks", type=int, required=True, help="how many")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as with python -m")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER)
    try:
        parsed = parser.parse_args(arguments)
        if not 1 <= parsed.ranks <= 256:
            parser.error(f"-n is {parsed.ranks}; it must be from 1 to 256")
    except InvalidArgument as error:
        _levada.report_error(type(error).__name__, str(error), -1)
        return 2
    script = ["-m", parsed.script] if parsed.module else [parsed.script]
    status, message = _levada.run_local(parsed.ranks, [sys.executable, *script, *parsed.arguments])
    if message:
        print(f"levada: {message}", file=sys.stderr)
    return status


def main() -> int:
    if sys.argv[1:2] == ["run"]:
        return run(sys.argv[2:])
    if sys.argv[1:2] == ["feed"] and names_callable(sys.argv[2:]):
        return feed(sys.argv[2:])
    return _levada.command(["levada", *sys.argv[1:]], [sys.executable, "-m", "levada"], open_tokenizer, FORMATS, REMOTE)


if __name__ == "__main__":
    sys.exit(main())
