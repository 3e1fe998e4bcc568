#!/usr/bin/env python3
"""Measures `levada feed` against its limits, interleaved, and prints medians.

    bench/feed.py CORPUS [--build build/release] [--rounds 7] [--mesh dp=2,tp=2] [--batch 8] [--seq 4096]

- tokens a second of the feed, over those of one process that cuts and digests the same data (bench/cut_and_digest);
- microseconds a step in excess of that process;
- the same with --dtype int32, over the feed with int64;
- the share of a step that the slowest rank waits when each step computes for 5 ms;
- tokens a second of one reader over those of every rank reading separately.
"""

import argparse
import json
import statistics
import subprocess
import sys

from record import record


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mesh", default="dp=2,tp=2")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--record", action="store_true", help="enter the figures into bench/results/feed.json")
    parser.add_argument("--compute-steps", type=int, default=400, help="steps of 5 ms each")
    options = parser.parse_args()

    feed = [f"{options.build}/levada", "feed", options.corpus, "--mesh", options.mesh, "--batch", str(options.batch),
            "--seq", str(options.seq), "--json"]
    if not options.corpus.endswith(".bin"):
        feed += ["--tokenizer", "bytes"]
    alone = [f"{options.build}/bench/cut_and_digest", options.corpus, str(options.batch), str(options.seq)]
    run(feed)  # warms caches and index

    rows = {name: [] for name in ("ratio", "beyond_us", "alone", "feed", "int32", "narrow", "all", "waiting")}
    for _ in range(options.rounds):
        limit, one, all_read = run(alone), run(feed), run([*feed, "--readers", "all"])
        narrow = run([*feed, "--dtype", "int32"])
        computing = run([*feed, "--compute-ms", "5", "--epochs", "0", "--steps", str(options.compute_steps)])
        rows["alone"].append(limit["tokens_per_s"])
        rows["feed"].append(one["tokens_per_s"])
        rows["all"].append(all_read["tokens_per_s"])
        rows["int32"].append(narrow["tokens_per_s"])
        rows["narrow"].append(narrow["tokens_per_s"] / one["tokens_per_s"])
        rows["ratio"].append(one["tokens_per_s"] / limit["tokens_per_s"])
        beyond = one["seconds"] - one["tokens"] / limit["tokens_per_s"]
        rows["beyond_us"].append(1e6 * beyond / one["steps"])
        rows["waiting"].append(max(rank["wait_s"] / rank["seconds"] for rank in computing["ranks"]))

    middle = {name: statistics.median(values) for name, values in rows.items()}
    print(f"one process cuts and digests      {middle['alone'] / 1e6:8.1f} M tokens/s")
    print(f"levada feed, one reader           {middle['feed'] / 1e6:8.1f} M tokens/s   {middle['ratio']:.2f}x of that")
    print(f"the same with --dtype int32       {middle['int32'] / 1e6:8.1f} M tokens/s   {middle['narrow']:.2f}x of one reader")
    print(f"levada feed, all ranks read       {middle['all'] / 1e6:8.1f} M tokens/s")
    print(f"a step beyond the one process     {middle['beyond_us']:8.1f} us")
    print(f"waiting, with 5 ms of compute     {100 * middle['waiting']:8.2f} % of a step")
    if options.record:
        kind = "bin" if options.corpus.endswith(".bin") else "jsonl"
        one = {"value": middle["feed"] / 1e6, "limit": {"value": middle["alone"] / 1e6, "share": middle["ratio"]}}
        others = {"all": middle["all"] / 1e6, "beyond": middle["beyond_us"], "waiting": 100 * middle["waiting"]}
        record("feed", {kind: one, **{f"{kind}-{name}": {"value": value} for name, value in others.items()}})


if __name__ == "__main__":
    main()
