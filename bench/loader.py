#!/usr/bin/env python3
"""Compares levada.DataLoader with a DataLoader of torch on each rank: slow items, items that take no time, and the time
to the first batch of a resumed run.

  build/python-torch/bin/python bench/loader.py [--decode 5] [--workers 2] [--items 480]

The ranks of a mesh run in lockstep, as in training. Torch's ranks have a DistributedSampler along dp. Made/used: items
made in the whole job for each sample that a data-parallel rank used."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import levada
from record import record

TORCH = "torch DataLoader on each rank"


class Decoded(Dataset):
    """Items that take `seconds` of a core to make. A file counts them."""

    def __init__(self, size, seconds, log):
        self.size, self.seconds, self.log = size, seconds, log

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        with open(self.log, "a") as file:
            file.write(".")
        return np.full(64, number)


class Numbers(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        return number


def rate(loader, set_epoch, items):
    """Returns the seconds of the second epoch, which all ranks begin and end together."""
    job = levada.join()
    for epoch in range(2):
        set_epoch(epoch)
        levada._levada.agree(job, b"", 600, "beginning an epoch")
        begun = time.monotonic()
        for _ in loader:
            levada._levada.agree(job, b"", 600, "a step")
    return time.monotonic() - begun


def note(options, key, loader, figure):
    """Leaves a figure of one loader for record_all()."""
    with open(options.figures, "a") as file:
        file.write(json.dumps([key, loader, figure]) + "\n")


def record_all(figures):
    """Enters the figures that note() left: Levada's as values, torch's as a peer's."""
    by_key = {}
    for key, loader, figure in map(json.loads, figures.read_text().splitlines()):
        by_key.setdefault(key, {})[loader] = figure
    records = {}
    for key, of in by_key.items():
        records[key] = {"value": of["levada"]}
        if "torch" in of:
            peer = records[key]["peers"] = {TORCH: {"value": of["torch"]}}
            if key in ("tp4", "dp4"):
                peer[TORCH]["times"] = of["levada"] / of["torch"]
            elif key.endswith("-2"):
                peer[TORCH]["times"] = of["torch"] / of["levada"]
    record("loader", records)


def decode(options):
    mesh = levada.Mesh.parse(options.mesh)
    dataset = Decoded(options.items, options.decode / 1000, options.log)
    at, ranks = mesh.data_coordinate(levada.rank()), mesh.data_size
    common = {"batch_size": 8, "num_workers": options.workers, "multiprocessing_context": "forkserver"}
    if options.loader == "torch":
        sampler = DistributedSampler(dataset, ranks, at, seed=7)
        loader = DataLoader(dataset, sampler=sampler, persistent_workers=True, **common)
        seconds = rate(loader, sampler.set_epoch, options.items)
    else:
        loader = levada.DataLoader(dataset, shuffle=True, seed=7, mesh=mesh, **common)
        seconds = rate(loader, loader.set_epoch, options.items)
        loader.close()
    levada._levada.agree(levada.join(), b"", 600, "ending")
    if levada.rank() == 0:
        made = os.path.getsize(options.log) / 2 / options.items
        print(f"{options.mesh:10} {options.loader:7} made/used {made:.3f}   {options.items / seconds:7.1f} items/s", flush=True)
        key = options.mesh.replace("=", "")
        note(options, key, options.loader, options.items / seconds)
        note(options, f"{key}-made", options.loader, made)


def trivial(options):
    for batch in (32, 256):
        for workers in (0, 2):
            size = batch * 400
            for name, loader in (
                ("torch", DataLoader(Numbers(size), batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0)),
                ("levada", levada.DataLoader(Numbers(size), batch, shuffle=True, num_workers=workers)),
            ):
                seconds = rate(loader, lambda epoch: None, size)
                print(f"trivial    {name:7} batch {batch:3}, {workers} workers   {seconds / size * 1e6:5.1f} us an item", flush=True)
                note(options, f"trivial-{batch}-{workers}", name, seconds / size * 1e6)


def resume(options):
    for position in (0, 10_000_000):
        loader = levada.DataLoader(Numbers(20_000_000), 32, shuffle=True)
        next(iter(loader))
        state = {**loader.state_dict()}
        from levada.loader.states import LoaderState

        loader.load_state_dict(LoaderState(0, position, state["order"]).encode())
        begun = time.monotonic()
        next(iter(loader))
        milliseconds = (time.monotonic() - begun) * 1e3
        print(f"resume     levada  at item {position:10,}   first batch after {milliseconds:.1f} ms", flush=True)
        note(options, "resume-10m" if position else "resume-0", "levada", milliseconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decode", type=float, default=5, help="milliseconds of a core for an item")
    parser.add_argument("--workers", type=int, default=2, help="of each reading rank; of torch: of each rank")
    parser.add_argument("--items", type=int, default=480)
    parser.add_argument("--record", action="store_true", help="enter the figures into bench/results/loader.json")
    parser.add_argument("--what", help=argparse.SUPPRESS)
    parser.add_argument("--figures", help=argparse.SUPPRESS)
    parser.add_argument("--mesh", help=argparse.SUPPRESS)
    parser.add_argument("--loader", help=argparse.SUPPRESS)
    parser.add_argument("--log", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what is not None:
        {"decode": decode, "trivial": trivial, "resume": resume}[options.what](options)
        return
    with tempfile.TemporaryDirectory() as folder:
        cases = [(4, "decode", mesh, loader) for mesh in ("tp=4", "dp=4") for loader in ("torch", "levada")]
        for ranks, what, mesh, loader in [*cases, (1, "trivial", "dp=1", "both"), (1, "resume", "dp=1", "levada")]:
            command = [sys.executable, "-m", "levada", "run", "-n", str(ranks), __file__, "--what", what, "--mesh", mesh]
            command += ["--loader", loader, "--log", f"{folder}/{mesh}.{loader}", "--decode", str(options.decode)]
            command += ["--figures", f"{folder}/figures"]
            subprocess.run([*command, "--workers", str(options.workers), "--items", str(options.items)], check=True)
        if options.record:
            record_all(pathlib.Path(folder, "figures"))


if __name__ == "__main__":
    main()
