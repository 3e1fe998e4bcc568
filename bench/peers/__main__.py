"""`python bench/peers`: starts ranks, and prints the times of levada and its peers in one run."""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import re
import sys
import tempfile
from typing import Any

from levada import _levada

OPERATIONS = ("scatter", "broadcast")
DISPATCH = "dispatch"
ENGINES = ("shm", "c10d")
SOURCES = ("host", "arena")
SIZES = ("256x4KiB", "64x256KiB", "mixed")
TOKENS = (8192, 32768, 131072, 262144)


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python bench/peers",
        description="Measure levada beside what it stands in for, round by round in the same processes, over gloo.",
        epilog="Example: python bench/peers peers --op scatter --ranks 4 --bytes 13107200",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    peers = commands.add_parser("peers", help="scatter and broadcast of four tensors and metadata; items of a pipeline")
    peers.add_argument("--op", choices=(*OPERATIONS, DISPATCH), help="scatter and broadcast if none is named")
    peers.add_argument("--item-bytes", type=int, help="of an item of dispatch; 8: an int (8, 65536 and 1048576)")
    peers.add_argument("--workers", type=int, default=2, help="of dispatch (2)")
    peers.add_argument("--seconds", type=float, default=3.0, help="that each contestant of dispatch is measured (3)")
    peers.add_argument("--bytes", type=int, default=13_107_200, help="that each rank receives (13107200)")
    peers.add_argument(
        "--access", choices=("default", "private", "read_only", "copy"), default="default", help="of a levada feed"
    )
    bridge = commands.add_parser("bridge", help="Megatron-Bridge's batches, through levada.dropin.bridge")
    bridge.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="of a batch of one row")
    loop = commands.add_parser("loop", help="what a step of `for batch in feed` costs when its batch is there")
    loop.add_argument("--bytes", type=int, default=13_107_200, help="that each rank receives (13107200)")
    exchange = commands.add_parser("exchange", help="ragged samples of three keys, from dp=W to dp=W/2,tp=2")
    exchange.add_argument("--samples", type=int, default=256, help="how many (256)")
    exchange.add_argument("--bytes", type=int, default=3_500_000, help="of all samples, about (3500000)")
    reduce = commands.add_parser("reduce", help="many reduce-scatters, beside fairscale's bucketer and one by one")
    reduce.add_argument("--sizes", nargs="+", default=SIZES, help="of inputs' pieces for a rank: 256x4KiB, or mixed")
    for command in (peers, bridge, loop, reduce):
        command.add_argument("--source", choices=SOURCES, help="both if none is named")
    for command, ranks in ((peers, 4), (bridge, 8), (loop, 4), (exchange, 4), (reduce, 4)):
        command.add_argument("--ranks", type=int, default=ranks, help=f"how many processes ({ranks})")
        command.add_argument("--engine", choices=ENGINES, help="both if none is named")
        command.add_argument("--rounds", type=int, default=50, help="that count (50)")
        command.add_argument("--json", action="store_true", help="print a JSON list of rows")
    parsed = parser.parse_args(arguments)
    if not 2 <= parsed.ranks <= 64:
        parser.error(f"--ranks is {parsed.ranks}; it must be from 2 to 64")
    if parsed.rounds < 1:
        parser.error(f"--rounds is {parsed.rounds}; it must be at least 1")
    if parsed.command == "peers":
        if parsed.item_bytes is not None and not 1 <= parsed.item_bytes <= 2**30:
            parser.error(f"--item-bytes is {parsed.item_bytes}; it must be from 1 to 1073741824")
        if not 1 <= parsed.workers <= 64:
            parser.error(f"--workers is {parsed.workers}; it must be from 1 to 64")
        if not 0 < parsed.seconds <= 600:
            parser.error(f"--seconds is {parsed.seconds}; it must be more than 0, and at most 600")
    if parsed.command == "bridge" and min(parsed.tokens) < 1:
        parser.error(f"--tokens is {min(parsed.tokens)}; it must be at least 1")
    if parsed.command == "exchange" and (parsed.ranks % 2 or not parsed.ranks <= parsed.samples <= 1_000_000):
        parser.error("--ranks must be even, and --samples from as many on to 1000000")
    for sizes in parsed.sizes if parsed.command == "reduce" else ():
        if not re.fullmatch(r"mixed|[1-9]\d{0,3}x[1-9]\d{0,4}(KiB|MiB)", sizes):
            parser.error(f"--sizes is {sizes}; it must be such as 256x4KiB, or mixed")
    if parsed.command in ("peers", "loop", "exchange") and not 128 <= parsed.bytes <= 2**31:
        parser.error(f"--bytes is {parsed.bytes}; it must be from 128 to 2147483648")
    return parsed


def _asks(parsed: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the tasks of the ranks, in order."""
    common = {
        "command": parsed.command,
        "ranks": parsed.ranks,
        "rounds": parsed.rounds,
        "warm_up": max(3, parsed.rounds // 5),
        "engines": [parsed.engine] if parsed.engine else ENGINES,
    }
    if parsed.command == "exchange":
        return [common | {"samples": parsed.samples, "bytes": parsed.bytes}]
    common["sources"] = [parsed.source] if parsed.source else SOURCES
    if parsed.command == "bridge":
        works = itertools.product(parsed.tokens, (False, True))
        return [common | {"tokens": tokens, "extras": extras} for tokens, extras in works]
    if parsed.command == "reduce":
        return [common | {"sizes": sizes} for sizes in parsed.sizes]
    common["bytes"] = parsed.bytes // 128 * 128
    if parsed.command == "loop":
        return [common | {"access": "default"}]
    return [common | {"access": parsed.access, "op": op} for op in ([parsed.op] if parsed.op else OPERATIONS)]


def _table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as aligned text: milliseconds, and each peer's time as a multiple of levada's."""
    times = [key for key in ("levada_us", "engine_us", "beyond_us", "tensors_us", "read_us", "copy_us") if any(key in row for row in rows)]
    heads = ["work", "bytes", "source", "engine", *(key.replace("_us", " ms") for key in times)]
    heads += ["peer ms"] * max(len(row.get("peers", {})) for row in rows)
    lines = []
    for row in rows:
        work = f"{row['op']} {row['tokens']:,} tokens{' +extras' if row['extras'] else ''}" if "tokens" in row else row["op"]
        work += f" {row['sizes']}" if "sizes" in row else ""
        line = [work, f"{row['bytes']:,}", row["source"], row["engine"]]
        line += [f"{row[time] / 1e3:.3f}" if time in row else "" for time in times]
        for name, us in row.get("peers", {}).items():
            line.append(f"{name} {us / 1e3:.2f} = {row['ratio'][name]:.1f}x, read {row['read_ratio'][name]:.1f}x")
        lines.append((line + [""] * len(heads))[: len(heads)])
    widths = [max(len(line[at]) for line in [heads, *lines]) for at in range(len(heads))]
    aligned = [heads, ["-" * width for width in widths], *lines]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in aligned)


def _dispatch(parsed: argparse.Namespace) -> int:
    import dispatch

    sizes = dispatch.SIZES if parsed.item_bytes is None else (parsed.item_bytes,)
    rows = [dispatch.row(size, parsed.workers, parsed.seconds) for size in sizes]
    print(json.dumps(rows, indent=1) if parsed.json else dispatch.table(rows))
    return 0


def main(arguments: list[str]) -> int:
    parsed = _arguments(arguments)
    if parsed.command == "peers" and parsed.op == DISPATCH:
        return _dispatch(parsed)
    with tempfile.TemporaryDirectory(prefix="levada-bench-") as name:
        folder = pathlib.Path(name)
        ask = json.dumps({"asks": _asks(parsed)})
        command = [sys.executable, str(pathlib.Path(__file__).with_name("work.py")), ask, name]
        status, message = _levada.run_local(parsed.ranks, command)
        if status != 0:
            print(f"bench/peers: {message or 'a rank failed'}", file=sys.stderr)
            return status
        rows = json.loads((folder / "rows.json").read_text())
    print(json.dumps(rows, indent=1) if parsed.json else _table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
