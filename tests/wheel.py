#!/usr/bin/env python3
"""Checks an installed wheel, in an empty folder, with the Python that has it. Each LIBRARY must not be loadable here.

    PYTHON wheel.py package [LIBRARY...]            imports, feeds two processes, moves samples between ranks
    PYTHON wheel.py library CONSUMER [LIBRARY...]   builds the C++ project CONSUMER with the library in the wheel
"""

import ctypes
import json
import pathlib
import shutil
import subprocess
import sys

RANK = """
import levada
import numpy as np
from levada import exchange

levada.join()
rank = levada.rank()
feed = levada.Feed(levada.Corpus("corpus.jsonl", seq_length=8, tokenizer="bytes"), mesh=levada.Mesh(dp=2), batch_size=1)
assert sum(batch["tokens"].size for batch in feed) >= 8
store = exchange.Store()
store.store(exchange.SampleBatch([f"s{rank}"], {"tokens": [np.full(3, rank)]}))
exchange.redistribute(store, {0: ["s1"], 1: ["s0"]}, ["tokens"])
assert (store.get([f"s{1 - rank}"], ["tokens"])["tokens"] == 1 - rank).all()
"""


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def check_absent(libraries):
    for library in libraries:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        sys.exit(f"{library} can be loaded here, so this shows nothing about a machine without it")


def check_package():
    import levada
    import numpy as np

    assert pathlib.Path(levada.__file__).is_relative_to(sys.prefix), levada.__file__
    batch = {"tokens": np.arange(12).reshape(3, 4), "names": ["a", "b"], "step": 7}
    back = levada.unpack(levada.pack(batch))
    assert (back["tokens"] == batch["tokens"]).all() and back["names"] == batch["names"] and back["step"] == 7


def check_command(levada):
    assert run(levada, "--version").startswith("levada "), "--version"
    pathlib.Path("corpus.jsonl").write_text("".join(f'{{"text": "document {at} of a tiny corpus"}}\n' for at in range(16)))
    fed = json.loads(run(levada, "feed", "corpus.jsonl", "--tokenizer", "bytes", "--mesh", "dp=2", "--batch", "1", "--seq", "8", "--json"))
    assert len(fed["ranks"]) == 2 and fed["tokens"] > 0, fed
    pathlib.Path("rank.py").write_text(RANK)
    run(levada, "run", "-n", "2", "rank.py")


def check_library(consumer):
    import levada

    # A name on PATH may be a wrapper around a missing program.
    names = [name for name in ("cmake", "/usr/bin/cmake") if shutil.which(name)]
    cmake = next((name for name in names if subprocess.run([name, "--version"], capture_output=True).returncode == 0), None)
    if cmake is None:
        sys.exit("no cmake that runs is found, with which to try the C++ library")
    run(cmake, "-S", consumer, "-B", "consumer", f"-Dlevada_DIR={levada.get_cmake_dir()}")
    run(cmake, "--build", "consumer")
    run("consumer/app")
    return "built a C++ program with the library in the wheel, and ran it"


def main():
    what, *arguments = sys.argv[1:]
    if what == "package":
        check_absent(arguments)
        check_package()
        check_command(str(pathlib.Path(sys.prefix) / "bin" / "levada"))
        done = "imported, fed two processes, exchanged samples"
    else:
        consumer, *libraries = arguments
        check_absent(libraries)
        done = check_library(consumer)
    print(f"Python {sys.version.split()[0]}: {done}")


if __name__ == "__main__":
    main()
