#!/usr/bin/env python3
"""Makes the charts in docs/performance/, and the tables in docs/performance.md, from the figures in bench/results/.

    bench/charts.py [--check]    # --check: only says whether they are up to date
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from bars import Chart, Span, linear, logarithmic

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = {file.stem: json.loads(file.read_text()) for file in sorted((ROOT / "bench/results").glob("*.json"))}
PAGE = ROOT / "docs/performance.md"
Record = dict[str, Any]


class Row(NamedTuple):
    """A bar: a record, the peer in it, and two lines of label."""

    record: str
    peer: str
    label: str
    beside: str


PEERS = [
    Row("loader/tp4", "torch DataLoader on each rank", "Items of 5 ms to decode, tp=4", "DataLoader on each rank"),
    Row("peers/scatter-13mb-host-shm", "scatter_object_list", "13 MB of tensors to each of 4 ranks", "scatter_object_list"),
    Row("peers/scatter-13mb-host-shm", "isend of each tensor", "13 MB of tensors to each of 4 ranks", "isend of each tensor"),
    Row("peers/scatter-13mb-host-c10d", "isend of each tensor", "The same, Levada over gloo too", "isend of each tensor"),
    Row("exchange/peers-4-3.4mb-shm", "all_gather_object", "3.4 MB of ragged samples between meshes", "all_gather_object"),
    Row("exchange/peers-4-3.4mb-shm", "AReaL's gather and scatter", "3.4 MB of ragged samples between meshes", "AReaL's gather and scatter"),
    Row("exchange/peers-4-3.4mb-shm", "one packed isend for each pair of ranks", "3.4 MB of ragged samples between meshes", "one packed isend for each pair"),
    Row("dispatch/peers-65536", "torchdata's dispatching", "Items of 64 KiB through 2 workers", "torchdata's dispatching"),
    Row("dispatch/peers-65536", "torch DataLoader", "Items of 64 KiB through 2 workers", "DataLoader of an iterable"),
    Row("reduce/peers-256x4KiB-host-shm", "fairscale's bucketer", "256 reduce-scatters of 4 KiB pieces", "fairscale's bucketer"),
    Row("megatron_packing/tp2,dp2", "Megatron-LM", "Sequence packing, tp=2, dp=2", "Megatron-LM over gloo"),
    Row("hosts/2x4-broadcast", "torch broadcast", "12.5 MiB to two hosts of 4 ranks", "torch's broadcast"),
    Row("data/tokenize", "encode_batch_fast of tokenizers", "Tokenizing text on both cores", "encode_batch_fast alone"),
    Row("loader/trivial-256-2", "torch DataLoader on each rank", "Items that take no time, batches of 256", "DataLoader"),
]  # fmt: skip

LIMITS = [
    ("exchange/4-64mb", "Exchange of 64 MB among 4 ranks", "one copy by one core"),
    ("mpi/openmpi-13mb", "13 MB between two ranks, over Open MPI", "MPI_Isend and MPI_Irecv"),
    ("peers/scatter-13mb-host-shm", "13 MB of tensors to each of 4 ranks", "one copy of the same bytes"),
    ("data/zstd", "Reading .jsonl.zst", "libzstd alone"),
    ("hosts/2x4-broadcast-2gbps-share", "Batches for two hosts of 4 ranks", "the link of 2 Gb/s"),
    ("loader/tp4", "Items of 5 ms to decode, tp=4", "what two cores can decode"),
    ("data/remote-order", "Reading remote storage in order", "its 200 MB/s"),
    ("reduce/one-large-arena", "Reduce-scatter of 64 MiB, 4 ranks", "adding up without messages"),
    ("gpu/step-prefetch", "Step of 11 ms with 64 MiB on a GPU", "batches that are on the GPU already"),
    ("feed/bin", "Feeding dp=2,tp=2 from a .bin, all digests", "one process that does the same"),
    ("fan_out/received-to-awake", "4 KiB to sleeping processes", "a bare FUTEX_WAKE of as many"),
    ("mpi/openmpi-4kib", "4 KiB there and back, over Open MPI", "MPI_Isend and MPI_Irecv"),
    ("data/pack-cut", "Packing a stream to rows of 4,096", "copying tokens and labels"),
]

STARTS = [
    ("loader/resume-10m", "First batch, resumed at item 10,000,000"),
    ("feed/resume", "levada feed resumed at step 1,000,000"),
    ("hosts/killed", "All other ranks know of a killed rank"),
    ("balance/plan-65536", "Planning a feed on 65,536 ranks"),
    ("balance/plan-hosts", "Comparing readers for 8,192 hosts"),
    ("data/open-pairs", "First batch of 10,000 pairs of .bin and .idx"),
    ("hosts/join", "4 hosts of 4 ranks join"),
    ("data/open-texts", "First batch of 10,000 texts, cached tokens"),
    ("hosts/silent", "A host is cut off, LEVADA_SILENCE=3"),
    ("data/open-tokenizing", "First batch of 10,000 texts to be tokenized"),
    ("start/run", "script/run in a fresh clone: build and demo"),
]

HOSTS = {
    "Links without a limit": ("hosts/2x4-broadcast", None),
    "Links of 2 Gb/s": ("hosts/2x4-broadcast-2gbps", "hosts_predicted/2x4-broadcast-2gbps"),
}
ENGINES = {
    "": "Levada, shared memory and c10d",
    "c10d alone, a message to each rank": "Levada, c10d alone",
    "torch broadcast": "torch's broadcast",
    "torch isend": "torch's isend to each rank",
}

BALANCE = {
    "256 samples over 8 ranks": [
        ("balance/8-none", "", "in their order"),
        ("balance/8-equal", "verl and slime", "verl and slime, equal counts"),
        ("balance/8-equal", "", "Levada, equal counts"),
        ("balance/8-free", "verl and slime", "verl and slime, free counts"),
        ("balance/8-free", "", "Levada, free counts"),
    ],
    "4,096 samples over 64 ranks": [
        ("balance/64-none", "", "in their order"),
        ("balance/64-equal", "verl and slime", "verl and slime, equal counts"),
        ("balance/64-equal", "", "Levada, equal counts"),
        ("balance/64-free", "verl and slime", "verl and slime, free counts"),
        ("balance/64-free", "", "Levada, free counts"),
    ],
    "2,048 samples over 64 ranks that wait in each micro-batch": [
        ("balance/wait-step-2048-64", "", 'Levada, wait="step"'),
        ("balance/wait-micro-2048-64", "", 'Levada, wait="micro"'),
    ],
}


LIVING = ("living/a-tp4", "living/c-tp4", "living/c-dp4")
LOADERS = {
    "": "Levada",
    "Levada, fork": "Levada, fork",
    "torch DataLoader": "torch",
    "StatefulDataLoader": "torchdata",
    "datasets, streaming": "datasets",
    "litData": "litData",
    "MosaicML Streaming": "MosaicML",
    "Megatron-Energon": "Energon",
    "Grain": "Grain",
    "SPDL": "SPDL",
}


FAR = 0.8
SHORTS = {
    "living/c-dp4": ("A pass over 512 JPEGs, 4 readers", "torch's DataLoader"),
    "living/f-dp4": ("First batch of 1,000 shards", "SPDL"),
    "balance/64-equal-call": ("Dividing a step, equal counts", "time of verl and slime, which divide it less evenly"),
    "hosts/near-beyond": ("Two hosts: the reader's own host", "time beyond a feed within it"),
    "fan_out/publish-32-to-4": ("Publishing to 32 sleeping processes", "in times of publishing to 4"),
    "hosts_predicted/messages": ("Steps of 64 bytes to several hosts", "in times of the prediction"),
    "start/test": ("script/test in a fresh clone", ""),
    "exchange/peers-8-3.4mb-c10d": ("Samples of 3.4 MB, 8 ranks, c10d", "one packed isend for each pair"),
    "peers/scatter-25kb-host-shm": ("25 KB of tensors to each of 4 ranks", "isend of each tensor"),
    "loader/trivial-256-2": ("Items that take no time, batches of 256", "DataLoader"),
    "peers/broadcast-13mb-arena-read_only": ("13 MB of NumPy arrays for all ranks", "broadcast of each array"),
    "exchange/peers-4-3.4mb-shm": ("Samples of 3.4 MB, 4 ranks", ""),
    "peers/loop-host-shm-beyond": ("next() of 4 tensors that are there", "time beyond the engine"),
    "fan_out/bytes-ratio": ("12.5 MiB for all of 4 ranks", "in times of 4 KiB"),
    "dispatch/peers-1048576": ("Items of 1 MiB through 2 workers", "a queue without workers"),
    "reduce/peers-64x256KiB-arena-shm": ("64 reduce-scatters of 256 KiB pieces", "fairscale's bucketer"),
    "fan_out/ranks-ratio": ("12.5 MiB for all of 8 ranks", "in times of 4 ranks"),
    "reduce/peers-mixed-host-shm": ("600 reduce-scatters of mixed sizes", "fairscale's bucketer"),
    "peers/scatter-13mb-host-c10d": ("13 MB of tensors to each of 4 ranks, c10d", "isend of each tensor"),
    "balance/micro-8192-packed-each": ("Balanced micro-batches", "step time of rows packed by best fit"),
    "exchange/peers-4-62mb-c10d": ("Samples of 62 MB, 4 ranks, c10d", "one packed isend for each pair"),
    "feed/jsonl-waiting": ("Waiting with steps of 5 ms", ""),
    "gpu/ddp": ("levada.ddp on a GPU, steps of 2.4 ms", "torch's hook, batches on the device"),
}
"""Labels of the records that reach less than FAR of their aims."""


def record(name: str) -> Record:
    topic, _, key = name.partition("/")
    found: Record = RESULTS[topic]["results"][key]
    return found


def span(value: Any) -> Span:
    """Returns the ends of a value that is a number or a pair of numbers."""
    return (value[0], value[1]) if isinstance(value, list) else (value, value)


def number(value: float) -> str:
    """Returns a figure as the results have it."""
    return f"{value:,}".removesuffix(".0")


def text_of(value: Any, unit: str = "") -> str:
    low, high = span(value)
    shown = number(low) if low == high else f"{number(low)} to {number(high)}"
    return (shown + unit if unit.startswith("%") else f"{shown} {unit}") if unit else shown


def digits(value: float) -> str:
    """Returns two significant digits, or all before the point."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1g}" if value < 0.01 else f"{value:.2g}"


def times_of(name: str, peer: str) -> Span:
    """Returns how many times as long the peer takes."""
    found, other = record(name), record(name)["peers"][peer]
    if "times" in other:
        return span(other["times"])
    return (other["value"] / found["value"],) * 2


def share_of(name: str) -> Span:
    """Returns the part of its limit's speed that a record reaches."""
    if name == "gpu/step-prefetch":  # a step that receives nothing is a record of its own
        return (record("gpu/step-resident")["value"] / record(name)["value"],) * 2
    found = record(name)
    bound = found["limit"]
    if "share" in bound:
        return span(bound["share"])
    if "times" in bound:
        low, high = span(bound["times"])
        return 1 / high, 1 / low
    return (found["value"] / bound["value"],) * 2


SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def seconds_of(name: str) -> Span:
    found = record(name)
    low, high = span(found["value"])
    return low * SECONDS[found["unit"]], found.get("max", high) * SECONDS[found["unit"]]


class Short(NamedTuple):
    """A figure that falls short of its aim."""

    record: str
    peer: str
    what: str
    reached: str
    aim: str
    why: str
    share: float
    """The part of the aim that is reached."""
    alike: int
    """Figures that fall short for the same reason, this one included."""


def parts_of(found: Record) -> Iterator[tuple[str, Record, Any]]:
    """Yields a record's figures that may have an aim: the name of a peer or limit, the figure, and its value."""
    yield "", found, found.get("value")
    for name, other in found.get("peers", {}).items():
        yield name, other, other.get("times")
    if "limit" in found:
        yield found["limit"]["name"], found["limit"], found["limit"].get("times", found["limit"].get("share"))


def worst_of(part: Record, value: Any) -> tuple[str, float, float]:
    """Returns the aim's operator and bound, and the worst value."""
    operator, _, aim = part["aim"].partition(" ")
    low, high = span(value)
    return operator, float(aim), max(high, part.get("max", high)) if operator == "<=" else low


def misses(part: Record, value: Any) -> bool:
    operator, aim, worst = worst_of(part, value)
    return worst > aim if operator == "<=" else worst < aim


def shorts() -> list[Short]:
    """Returns what falls short of its aim, the farthest first: of figures with the same reason the farthest."""
    found: dict[str, Short] = {}
    for topic, results in RESULTS.items():
        for key, each in results["results"].items():
            for peer, part, value in parts_of(each):
                if "aim" not in part or not misses(part, value):
                    continue
                operator, aim, worst = worst_of(part, value)
                share = (aim / worst if operator == "<=" else worst / aim) if aim else 0.0
                shown = text_of(value, each["unit"] if part is each else "times")
                shown += f", {number(part['max'])} at worst" if "max" in part else ""
                bound = f"{'at most' if operator == '<=' else 'at least'} {number(aim)}"
                what = each["name"] + (f", beside {peer}" if peer else "")
                short = Short(f"{topic}/{key}", peer, what, shown, bound, part["short"], share, 1)
                other = found.get(short.why)
                if other is not None:
                    short = (short if share < other.share else other)._replace(alike=other.alike + 1)
                found[short.why] = short
    return sorted(found.values(), key=lambda each: each.share)


def peers_chart() -> str:
    ticks = {0.5: "half", 1: "1", 2: "2", 5: "5", 10: "10", 20: "20", 50: "50", 100: "100", 200: "200"}
    chart = Chart("Levada and what people use today", "times as fast as the peer", logarithmic(0.4, 200), ticks, 1)
    for row in PEERS:
        ends = times_of(row.record, row.peer)
        listed = [each if "times" in record(row.record)["peers"][row.peer] else round(each, 1) for each in ends]
        chart.add_bar(row.label, row.beside, ends, text_of(listed) + "x", "behind" if ends[0] < 1 else "ours", 1)
    return chart.drawn()


def limits_chart() -> str:
    ticks = {share / 100: f"{share}%" for share in range(0, 126, 25)}
    chart = Chart("How near to its limit each is", "share of the limit's speed", linear(1.4), ticks, 0)
    for name, label, bound in LIMITS:
        ends = share_of(name)
        low, high = (f"{100 * each:.0f}" for each in ends)
        chart.add_bar(label, bound, ends, f"{low}%" if low == high else f"{low} to {high}%", "ours", 1)
    return chart.drawn()


def starts_chart() -> str:
    ticks = {0.001: "1 ms", 0.01: "10 ms", 0.1: "0.1 s", 1: "1 s", 10: "10 s", 100: "100 s"}
    chart = Chart("Time to start, to resume and to notice a loss", "seconds; the line is the aim", logarithmic(0.0005, 200), ticks, 0.0005)
    for name, label in STARTS:
        found = record(name)
        aim = float(found["aim"].split()[1]) * SECONDS[found["unit"]] if "aim" in found else None
        style = "behind" if "aim" in found and misses(found, found["value"]) else "ours"
        value = text_of(found["value"], found["unit"]) + (f", at most {number(found['max'])} {found['unit']}" if "max" in found else "")
        chart.add_bar(label, "", seconds_of(name), value, style, aim, column=True)
    return chart.drawn()


def hosts_chart() -> str:
    ticks = {float(each): f"{each}" for each in range(0, 251, 50)}
    chart = Chart("A batch for all ranks of two hosts with four ranks each", "ms for 12.5 MiB", linear(250), ticks, 0)
    for group, (name, bounded) in HOSTS.items():
        found = record(name)
        bound = record(bounded)["limit"]["value"] if bounded else None
        chart.add_group(group + (f"; the line is the limit of one crossing, {number(bound)} ms" if bound else ""))
        for engine, label in ENGINES.items():
            value = found["peers"][engine]["value"] if engine else found["value"]
            chart.add_bar(label, "", span(value), text_of(value, "ms"), "theirs" if engine else "ours", bound)
    return chart.drawn()


def balance_chart() -> str:
    ticks = {each / 100: f"{each}%" for each in (0, 25, 50, 75, 100)}
    chart = Chart("The time of a step beyond the least possible", "time of a step beyond the least possible", linear(1), ticks, 0)
    for group, bars in BALANCE.items():
        chart.add_group(group)
        for name, peer, label in bars:
            value = record(name)["peers"][peer]["value"] if peer else record(name)["value"]
            ours = label.startswith("Levada")
            chart.add_bar(label, "", span(value - 1), f"{digits(round(100 * (value - 1), 4))}%", "ours" if ours else "theirs")
    return chart.drawn()


def shorts_chart() -> str:
    ticks = {share / 100: f"{share}%" for share in range(0, 101, 25)}
    chart = Chart("What falls short of its aim", "part of the aim that is reached", linear(1), ticks, 0)
    for each in shorts():
        if 0 < each.share < FAR:
            label, beside = SHORTS[each.record]
            chart.add_bar(label, beside or each.peer, (each.share,) * 2, f"{100 * each.share:.0f}%", "behind", 1)
    return chart.drawn()


def loaders_of(found: Record) -> dict[str, Record]:
    """Returns the records of Levada and of its peers by the names of their columns."""
    return {name: found["peers"][peer] if peer else found for peer, name in LOADERS.items() if not peer or peer in found["peers"]}


def living_chart() -> str:
    drawn = {name: loaders_of(record(name)) for name in LIVING if name.partition("/")[2] in RESULTS["living"]["results"]}
    longest = max((each.get("value", 0) for of in drawn.values() for each in of.values()), default=1)
    step = next(each for each in (1, 2, 5, 10, 20, 50, 100) if longest / each <= 7)
    ticks = {float(each): f"{each}" for each in range(0, int(longest) + 2 * step, step)}
    chart = Chart("A pass of other loaders", "seconds; the darker part is the time until the first batch", linear(max(ticks)), ticks, 0)
    for name, of in drawn.items():
        chart.add_group(record(name)["name"])
        for loader, each in of.items():
            if "value" in each:
                chart.add_bar(loader, "", (each["first"], each["value"]), f"{each['value']:.2f} s", "ours" if loader.startswith("Levada") else "theirs")
    return chart.drawn()


CHARTS = {
    **({"living": living_chart} if RESULTS["living"]["results"] else {}),
    "peers": peers_chart,
    "limits": limits_chart,
    "starts": starts_chart,
    "hosts": hosts_chart,
    "balance": balance_chart,
    "shorts": shorts_chart,
}


def peers_table() -> str:
    lines = ["| what | Levada | times as fast as | limit | results |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(row.record for row in PEERS):
        found = record(name)
        unit, topic = found["unit"], name.partition("/")[0]
        peers = []
        for row in (row for row in PEERS if row.record == name):
            other = found["peers"][row.peer]
            times = text_of(other["times"]) if "times" in other else f"{times_of(name, row.peer)[0]:.1f}"
            peers.append(f"{row.beside}: {times}" + (f" ({text_of(other['value'], unit)})" if "value" in other else ""))
        bound = found.get("limit", {})
        limit = f"{bound['name']}: {text_of(bound['value'], unit)}" if "value" in bound else ""
        limit = limit or (f"{bound['name']}: {text_of(bound['times'])} of its time" if "times" in bound else "")
        link = f"[{topic}](../bench/results/{topic}.json)"
        lines.append(f"| {found['name']} | {text_of(found['value'], unit)} | {'; '.join(peers)} | {limit} | {link} |")
    return "\n".join(lines) + "\n"


def shorts_table() -> str:
    lines = ["| what | reached | aim | why |", "|---|---|---|---|"]
    for each in shorts():
        what = each.what + (f" (and {each.alike - 1} more)" if each.alike > 1 else "")
        lines.append(f"| {what} | {each.reached} | {each.aim} | {each.why} |")
    return "\n".join(lines) + "\n"


def living_table() -> str:
    """Returns the seconds of each cell, and the sentences of those that have something to say."""
    lines = ["| what | " + " | ".join(LOADERS.values()) + " |", "|---" * (1 + len(LOADERS)) + "|"]
    sentences = []
    for found in RESULTS["living"]["results"].values():
        of = loaders_of(found)
        cells = []
        for loader in LOADERS.values():
            each = of.get(loader, {})
            cells.append((f"{each['value']:.2f}" if "value" in each else "-") + ("*" if "says" in each else ""))
            if "says" in each:
                sentences.append(f"- * {found['name']}, {loader}: {each['says'].rstrip('.')}.")
        lines.append(f"| {found['name']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *sentences]) + "\n"


def dlio_table() -> str:
    """Returns the utilization, samples, processor time and bytes of Levada and of DLIO's torch loader."""
    titles = [f"{part}, {each}" for part in ("AU, %", "samples/s", "cpu, s", "read, MB") for each in ("Levada", "torch")]
    lines = ["| what | " + " | ".join(titles) + " | AU without a loader, % |", "|---" * (2 + len(titles)) + "|"]
    for key, found in RESULTS["dlio"]["results"].items():
        if found["unit"] != "%":
            continue
        cells = []
        for suffix, field in (("", "value"), ("-rate", "value"), ("-cpu", "value"), ("-cpu", "read")):
            of = record(f"dlio/{key}{suffix}")
            cells += [number(each[field]) for each in (of, *of["peers"].values())]
        lines.append(f"| {found['name'].partition(', ')[2]} | {' | '.join(cells)} | {number(found['limit']['value'])} |")
    return "\n".join(lines) + "\n"


TABLES = {"peers": peers_table, "shorts": shorts_table, "dlio": dlio_table}
if RESULTS["living"]["results"]:
    TABLES["living"] = living_table


def with_tables(page: str) -> str:
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: made by bench/charts.py -->\n", "<!-- end -->\n"
        before, _, rest = page.partition(begin)
        page = before + begin + table() + end + rest.partition(end)[2]
    return page


def made() -> dict[pathlib.Path, str]:
    """Returns the text of each file that this program makes."""
    charts = {ROOT / f"docs/performance/{name}.svg": draw() for name, draw in CHARTS.items()}
    return charts | {PAGE: with_tables(PAGE.read_text())}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    options = parser.parse_args(arguments)
    files = made()
    stale = [str(file.relative_to(ROOT)) for file, text in files.items() if not file.exists() or file.read_text() != text]
    if options.check and stale:
        sys.exit(f"{', '.join(stale)}: not what bench/results/ has; run bench/charts.py")
    for file, text in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
