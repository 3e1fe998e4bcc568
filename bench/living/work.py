"""The workloads: how their records are made, stored and decoded. All loaders decode with the same functions."""

from __future__ import annotations

import array
import functools
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

SEED = 7
FIRST_ID = 32_000
"""The first token of a packed sample is FIRST_ID plus the sample's number."""
SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "script"


class Workload(NamedTuple):
    name: str
    kind: str
    """Decides how records are made and decoded: tokens, text, image or dict."""
    records: int
    shards: int
    suffix: str
    seq: int = 4096
    buffer: int | None = 100
    """Samples of a stream's shuffle buffer. A state does not hold the buffer."""


WORKLOADS = {
    "a": Workload("Tokens packed to 4,096", "tokens", 1024, 16, "bin"),
    "b": Workload("Text, tokenized on the fly", "text", 1024, 16, "txt"),
    "c": Workload("JPEGs of 256x256, decoded", "image", 512, 16, "jpg"),
    "d": Workload("Dicts with ragged images and names", "dict", 256, 16, "npz"),
    "e": Workload("First batch, resumed in mid epoch of dp=4", "image", 512, 16, "jpg", buffer=None),
    "f": Workload("First batch of 1,000 shards", "tokens", 8000, 1000, "bin", 256),
}


def smoke(work: Workload) -> Workload:
    return work._replace(records=128, shards=min(work.shards, 32) if work.shards > 16 else 16)


def make_records(work: Workload, folder: pathlib.Path) -> Iterator[tuple[int, bytes]]:
    """Yields (number, bytes) of each record, the same ones in each call."""
    drawn = np.random.default_rng(SEED)
    texts = make_texts(work, folder) if work.kind == "text" else iter(())
    for number in range(work.records):
        if work.kind == "tokens":
            tokens = drawn.integers(0, FIRST_ID, work.seq, np.int32)
            tokens[0] = FIRST_ID + number
            yield number, tokens.tobytes()
        elif work.kind == "text":
            yield number, next(texts).encode()
        elif work.kind == "image":
            yield number, make_jpeg(drawn)
        else:
            images = {f"image{at}": drawn.integers(0, 256, (*drawn.integers(64, 225, 2), 3), np.uint8) for at in range(drawn.integers(1, 4))}
            written = io.BytesIO()
            np.savez(written, name=f"sample-{number:06}.jpg", tokens=drawn.integers(0, FIRST_ID, drawn.integers(16, 513)), **images)
            yield number, written.getvalue()


def make_jpeg(drawn: np.random.Generator) -> bytes:
    from PIL import Image

    coarse = Image.fromarray(drawn.integers(0, 256, (16, 16, 3), np.uint8)).resize((256, 256), Image.Resampling.BICUBIC)
    noise = drawn.integers(-12, 13, (256, 256, 3))
    written = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)).save(written, "JPEG", quality=90)
    return written.getvalue()


def make_texts(work: Workload, folder: pathlib.Path) -> Iterator[str]:
    """Yields texts of at most 4,000 bytes that begin with their number, and makes a tokenizer from them."""
    sources, lines = folder / "sources.jsonl", folder / "texts.jsonl"
    if not lines.exists():
        subprocess.run([sys.executable, SCRIPTS / "make-corpus", sources], check=True, stdout=subprocess.DEVNULL)
        pieces = (text[at : at + 3900] for line in sources.open() if (text := json.loads(line)["text"]).isascii() for at in range(0, len(text), 3900))
        with lines.open("w") as file:
            for number in range(work.records):
                file.write(json.dumps({"text": f"{number:08}\n{next(pieces)}"}) + "\n")
        subprocess.run([sys.executable, SCRIPTS / "make-tokenizer", lines, folder / "tokenizer.json"], check=True)
    yield from (json.loads(line)["text"] for line in lines.open())


class Decoder:
    """Decodes a record. The log gets a line for each: the process, and how many bytes it has read by system calls."""

    def __init__(self, work: Workload, folder: pathlib.Path, log: pathlib.Path) -> None:
        self.work, self.folder, self.log, self.pid = work, folder, log, 0

    def __call__(self, number: int, data: bytes | Any) -> dict[str, Any]:
        if self.pid != os.getpid():
            self.file = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            # A worker that imports the main module has read modules, too. Its records are read one by one.
            self.before = bytes_read() - len(data) if "__mp_main__" in sys.modules else 0
            self.pid = os.getpid()  # last, since threads may share this object
        os.write(self.file, b"%d %d\n" % (self.pid, bytes_read() - self.before))
        if self.work.kind == "tokens":
            return {"id": number, "tokens": np.frombuffer(data, np.int32).copy()}
        if self.work.kind == "text":
            return {"id": number, "tokens": np.array(tokenizer(self.folder).encode(bytes(data).decode()).ids)}
        if self.work.kind == "image":
            from PIL import Image

            return {"id": number, "image": np.asarray(Image.open(io.BytesIO(data)))}
        with np.load(io.BytesIO(data)) as arrays:
            images = [arrays[key] for key in arrays.files if key.startswith("image")]
            return {"id": number, "name": str(arrays["name"]), "tokens": arrays["tokens"], "images": images}

    def __getstate__(self) -> dict[str, Any]:
        return {"work": self.work, "folder": self.folder, "log": self.log, "pid": 0}


@functools.cache
def tokenizer(folder: pathlib.Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def bytes_read() -> int:
    """Returns the bytes that this process has read by system calls, those from pipes included."""
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])


def collate(samples: list[dict[str, Any]], convert: Any = None) -> dict[str, Any]:
    """Stacks arrays of one shape, and makes lists of the others."""
    if convert is None:
        from torch import from_numpy as convert
    batch: dict[str, Any] = {}
    for key in samples[0]:
        values = [sample[key] for sample in samples]
        if key == "id":
            batch[key] = convert(np.array(values))
        elif key == "images":
            batch[key] = [[convert(np.array(image)) for image in images] for images in values]
        elif key == "name":
            batch[key] = values
        elif len({each.shape for each in values}) == 1:
            batch[key] = convert(np.stack(values))
        else:
            batch[key] = [convert(each) for each in values]
    return batch


def collate_arrays(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return collate(samples, np.asarray)


class Records:
    """A map-style data set of records in files: image and dict have a file for each record, the others shards."""

    def __init__(self, folder: pathlib.Path, decode: Decoder) -> None:
        self.folder, self.decode = folder, decode
        self.names: list[str] = json.loads((folder / "names.json").read_text())
        self.places = np.load(folder / "places.npy")

    def __repr__(self) -> str:
        return f"Records({self.folder})"

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> dict[str, Any]:
        file, offset, size = self.places[int(number)]
        with open(self.folder / self.names[file], "rb", buffering=0) as opened:
            return self.decode(int(number), os.pread(opened.fileno(), size, offset))


def write_records(work: Workload, records: Iterator[tuple[int, bytes]], folder: pathlib.Path) -> None:
    each = 1 if work.kind in ("image", "dict") else work.records // work.shards
    names: list[str] = []
    places = []
    for number, data in records:
        if number % each == 0:
            names.append(f"{number // each:06}.{work.suffix}")
            (folder / names[-1]).touch()
        with (folder / names[-1]).open("ab") as file:
            places.append((len(names) - 1, file.tell(), len(data)))
            file.write(data)
    (folder / "names.json").write_text(json.dumps(names))
    np.save(folder / "places.npy", np.array(places))


def write_megatron(work: Workload, records: Iterator[tuple[int, bytes]], folder: pathlib.Path) -> None:
    """Writes a pair of .bin and .idx for each shard, whose samples are cut from documents of a quarter of their length.
    Only the last pair has the one token more that the last sample's labels need."""
    each, quarter = work.records // work.shards, work.seq // 4
    for number, data in records:
        with (folder / f"{number // each:06}.bin").open("ab") as file:
            file.write(data + (b"\1\0\0\0" if number == work.records - 1 else b""))
    for shard in range(work.shards):
        sizes = [quarter] * (4 * each)
        sizes[-1] += shard == work.shards - 1
        starts = [4 * quarter * at for at in range(len(sizes))]
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(sizes), len(sizes) + 1)
        tables = array.array("i", sizes).tobytes() + array.array("q", starts).tobytes() + array.array("q", range(len(sizes) + 1)).tobytes()
        (folder / f"{shard:06}.idx").write_bytes(head + tables)
