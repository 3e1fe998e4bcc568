"""Runs, compiles or compares every code block of the pages that is not Python, by the rule in RULES; test_pages.py names
the tests that run Python. Run by `script/check python-torch`."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import levada
import pytest
import sentencepiece
import tokenizers

ROOT = pathlib.Path(__file__).parents[2]

RUN = "run by bash in a folder with some text, with PROGRAMS in place of what needs more than this machine"
COMPILE = "compiled within a function, after PROGRAM"
IMPORTS = "parsed; what it imports from levada is there, and has the names of what it imports from others"
GIVEN = "given to the commands in GIVEN_TO"
PICTURE = "exempt: a picture, to be read"
DRAWN = "exempt: drawn by the site"

RULES = {
    "sh": RUN,
    "diff": "a program that parses, in which DataLoader has what the lines that are added give it",
    "cpp": COMPILE,
    "json": GIVEN,
    "mermaid": DRAWN,
    "cmake": "tests/consumer/CMakeLists.txt has these lines",
    "bench/README.md sh": [RUN, "exempt: tests/report_in_browser.py opens these pages", RUN],
    "docs/getting-started.md sh": "test_getting_started.py",
    "docs/getting-started.md text": "test_getting_started.py",
    "docs/several-hosts.md sh": "test_several_hosts.py",
    "docs/several-hosts.md bash": "test_several_hosts.py",
    "docs/several-hosts.md yaml": "test_several_hosts.py",
    "docs/migrate/areal.md text": IMPORTS,
    "docs/migrate/megatron-packing.md text": [IMPORTS, PICTURE, IMPORTS],
    "docs/migrate/megatron.md text": IMPORTS,
    "docs/migrate/torchdata.md text": IMPORTS,
    "README.md ": "printed, but for its numbers, by demo corpus.jsonl llama.model --levada levada",
    "docs/balance.md ": "printed, but for its numbers, by levada plan corpus.jsonl --tokenizer bytes --mesh dp=2 --batch 4 --seq 8192 "
    "--pack documents --balance flops",
    "docs/balance.md text": "exempt: tests/command_balance_test.cc has its form",
    "docs/several-hosts.md ": "exempt: lines of two hosts, in the words of choice_test.cc and detect_test.cc of the library",
    "docs/my-step-raised.md ": "exempt: levada/feed/loss_test.cc and test_losses.py have its form",
    "docs/python/feed-reference.md text": "exempt: levada/feed/feed_difference_test.cc and python/tests/test_reader_differences.py have its form",
    "docs/design/pipeline.md ": "exempt: levada/pipeline/show_test.cc has its form",
    "docs/design/corpus.md ": PICTURE,
    "docs/design/devices.md ": PICTURE,
    "docs/design/engine.md ": PICTURE,
    "docs/design/message.md ": PICTURE,
    "docs/design/mpi.md ": PICTURE,
    "docs/design/p2p.md ": PICTURE,
    "docs/design/plan.md ": PICTURE,
    "docs/design/reduce.md text": PICTURE,
    "docs/design/sources.md ": PICTURE,
}
"""Rules by language, or by page and language; a list has one rule for each block of that kind."""


GIVEN_TO = {
    "docs/command.md": ["levada plan --exchange FILE"],
    "docs/data-loading.md": [
        "levada feed FILE --tokenizer bytes --mesh dp=2 --batch 2 --seq 32 --steps 2",
        "levada plan --layout FILE --mesh dp=2,cp=2,tp=2,pp=2 --batch 2 --seq 32",
    ],
    "docs/design/plan.md": ["levada plan --layout FILE --mesh dp=2,pp=3 --batch 2 --seq 32"],
}
"""The commands that read each page's blocks, by page."""

PROGRAMS = {
    "levada": f'exec {sys.executable} -m levada "$@"',
    "python": f'exec {sys.executable} "$@"',
    "demo": f'exec {sys.executable} {ROOT}/bench/demo.py "$@"',
    "cmake": "test -n \"$*\"",
    "git": "exit 0",
    "levada_bench": 'case "$1" in scatter | exchange | dispatch | reduce-scatter) ;; *) exit 2 ;; esac',
    "pip": 'test "$1" = install',
}
"""Programs that replace those of the blocks: installing, building, measuring and listing files do nothing. Programs of
script/ and bench/, and those built from bench/*.cc, do nothing either, but must exist."""

PROGRAM = """
#include <cstdio>
#include <memory>
#include "levada/corpus/corpus.h"
#include "levada/exchange/exchange.h"
#include "levada/feed/feed.h"
#include "levada/launch/launch.h"
#include "levada/pipeline/item_sources.h"
#include "levada/pipeline/show.h"
#ifdef WITH_MPI
#include <mpi.h>
#include "levada/engine/mpi/mpi.h"
#endif
"""


class Block(NamedTuple):
    page: str
    language: str
    number: int
    """Index among the page's blocks in the same language."""
    text: str

    @property
    def rule(self) -> str:
        rule = RULES.get(f"{self.page} {self.language}", RULES.get(self.language))
        assert rule is not None, f"no rule of RULES covers this block of {self.page}:\n{self.text}"
        return rule if isinstance(rule, str) else rule[self.number]


def blocks() -> list[Block]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "bench/README.md"]
    found: list[Block] = []
    for path in sorted(pages):
        page = path.relative_to(ROOT).as_posix()
        for language, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", path.read_text(), re.DOTALL | re.MULTILINE):
            if language != "python":
                found.append(Block(page, language, sum(each[:2] == (page, language) for each in found), text))
    return found


BLOCKS = blocks()


def by(rule: str) -> Any:
    """Parametrizes `block` over all blocks whose rule begins with `rule`."""
    chosen = [block for block in BLOCKS if block.rule.startswith(rule)]
    return pytest.mark.parametrize("block", chosen, ids=[f"{block.page}-{block.number}" for block in chosen])


def write_program(path: pathlib.Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def zstd_frame(text: bytes) -> bytes:
    """Returns a frame of a single block without compression."""
    assert len(text) < 1 << 17
    return b"\x28\xb5\x2f\xfd\xa0" + len(text).to_bytes(4, "little") + (len(text) << 3 | 1).to_bytes(3, "little") + text


def write_text(folder: pathlib.Path) -> None:
    repeats = [20 + 37 * number % 90 * (1 + 5 * (number % 7 == 0)) for number in range(600)]
    lines = [json.dumps({"text": "some words of text " * repeat}) + "\n" for repeat in repeats]
    for name in ("corpus", "one", "manual", "build/corpus", "corpus/0", "code/0", "web/0", "data/web/0"):
        name += ".jsonl"
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("".join(lines))
    for name in ("more.txt", "books.txt"):
        (folder / name).write_text("some lines\nof text\n" * 500)
    for name in ("corpus.jsonl.zst", "web/1.jsonl.zst"):
        frames = ["".join(lines[at : at + 7]).encode() for at in range(0, len(lines), 7)]
        (folder / name).write_bytes(b"".join(map(zstd_frame, frames)))


def write_tokenizers(folder: pathlib.Path) -> None:
    words = ["some", "words", "of", "text", "</s>"]
    model = tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="of")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["</s>"])
    (folder / "my-model").mkdir()
    made.save(str(folder / "my-model/tokenizer.json"))
    with open(folder / "llama.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["some words of text"] * 50), model_writer=file, vocab_size=14, minloglevel=2
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the files and programs that the pages' commands name."""
    folder = tmp_path_factory.mktemp("pages")
    write_text(folder)
    write_tokenizers(folder)
    for name, script in PROGRAMS.items():
        write_program(folder / "bin" / name, script)
    for path in [*(ROOT / "script").iterdir(), *(ROOT / "bench").glob("*.py")]:
        write_program(folder / path.relative_to(ROOT), "exit")  # run as Python, `exit` does nothing
    for path in [*(ROOT / "bench").glob("*.cc"), ROOT / "bench/mpi.cc"]:
        for preset in ("release", "openmpi"):
            write_program(folder / "build" / preset / "bench" / path.stem, "exit 0")
    write_program(folder / "build/dev/tests/tree_test", "exit 0")
    for environment in ("bench-peers", "living", "dlio"):
        write_program(folder / f"build/{environment}/bin/python", f'test -e {ROOT}/"$1"')
        write_program(folder / f"build/{environment}/bin/pip", PROGRAMS["pip"])
    for loaders in ("living", "dlio"):
        (folder / f"bench/{loaders}").mkdir()
        shutil.copy(ROOT / f"bench/{loaders}/requirements.txt", folder / f"bench/{loaders}")
    (folder / "train.py").write_text("import levada\nlevada.rank()\n")
    (folder / "package").mkdir()
    shutil.copyfile(folder / "train.py", folder / "package/module.py")
    shutil.copytree(ROOT / "examples", folder / "examples")
    for block in BLOCKS:
        if block.page == "docs/command.md" and block.language == "json":
            (folder / "exchange.json").write_text(block.text)
    return folder


def run(folder: pathlib.Path, script: str) -> str:
    """Runs a script. Returns its standard output."""
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", script]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, f"{script}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def test_every_block_has_a_rule_and_every_rule_has_a_block() -> None:
    kinds = {f"{block.page} {block.language}" for block in BLOCKS} | {block.language for block in BLOCKS}
    assert RULES.keys() <= kinds, "rules for blocks that no page has"
    for block in BLOCKS:
        assert block.rule
        if block.rule.endswith(".py"):
            test = (ROOT / "python/tests_torch" / block.rule).read_text()
            assert block.page.removeprefix("docs/") in test and f'blocks("{block.language}")' in test


@by(RUN)
def test_shell(folder: pathlib.Path, block: Block) -> None:
    options_left_out = re.sub(r"\[[^\]\n]*[|.][^\]\n]*\]+", "", block.text)
    run(folder, options_left_out.replace("PATH...", "corpus.jsonl"))


@by(GIVEN)
def test_json(folder: pathlib.Path, block: Block) -> None:
    (folder / "given.json").write_text(block.text)
    run(folder, GIVEN_TO[block.page][block.number].replace("FILE", "given.json"))


def form_of(printed: str) -> list[str]:
    """Returns the lines without numbers, digests, units and the resulting extra spaces."""
    lines = [re.sub(r"\b[0-9a-f]{8}\b|-?\d[\d.,]*(e\+\d+)?x?%?", "0", line) for line in printed.splitlines()]
    return [" ".join(re.sub(r"0 ([kKMG]i?B?|[mun]?s)\b", "0", line).split()) for line in lines]


@by("printed, but for its numbers, by ")
def test_output(folder: pathlib.Path, block: Block) -> None:
    printed = run(folder, block.rule.rpartition(", by ")[2])
    assert form_of(block.text) == [line for line in form_of(printed) if line in form_of(block.text)] != []


def test_cpp_is_compiled(tmp_path: pathlib.Path) -> None:
    cache = (ROOT / "build/release/CMakeCache.txt").read_text()
    compiler = re.findall(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)[0]
    mpi = subprocess.run(["mpicxx", "--showme:compile"], capture_output=True, text=True) if shutil.which("mpicxx") else None
    flags = ["-DWITH_MPI", *mpi.stdout.split()] if mpi is not None and mpi.returncode == 0 else []
    program = PROGRAM
    for number, block in enumerate(block for block in BLOCKS if block.rule == COMPILE):
        if "mpi" not in block.page or flags:
            names = CPP_NAMES.get(block.page, "")
            text = block.text.replace("...", "levada::Mesh(), levada::layouts::gpt(), nullptr, levada::FeedOptions()")
            program += f"void block_{number}({names}) {{\n{text}}}\n"
    (tmp_path / "blocks.cc").write_text(program)
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wno-unused", f"-I{ROOT}", *flags, tmp_path / "blocks.cc"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr


CPP_NAMES = {
    "docs/design/exchange.md": "std::shared_ptr<levada::Engine> engine, levada::SampleBatch rollouts, "
    "std::vector<std::vector<std::string>> ids_by_dp, std::size_t my_dp",
    "docs/design/mpi.md": "int argc, char** argv",
    "docs/design/pipeline.md": "levada::pipeline::Item (*tokenize)(levada::pipeline::Item)",
}
"""The parameters that each page's blocks use, by page."""


def test_the_first_cpp_is_the_example() -> None:
    (block,) = (block for block in BLOCKS if (block.page, block.language) == ("docs/cpp.md", "cpp"))
    shown, example = (re.sub(r"//.*|const |\s", "", text) for text in (block.text, (ROOT / "examples/feed.cc").read_text()))
    example = example.replace("constauto", "auto").replace("autoseen", "autotokens")
    for statement in shown.replace('"dp=2,tp=2"', "axes").replace('"corpus.jsonl"', "path").replace("4096", "1024").split(";"):
        assert statement.strip("}") in example, statement


@by("a program that parses")
def test_diff(block: Block) -> None:
    lines = [line for line in block.text.splitlines() if not line.startswith("-")]
    program = ast.parse("\n".join(line[1:] for line in lines))
    for call in (node for node in ast.walk(program) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        if name == "levada.DataLoader":
            taken = inspect.signature(levada.DataLoader).parameters
            named = {each.arg for each in call.keywords if each.arg is not None}
            assert named <= taken.keys() or any(each.kind is each.VAR_KEYWORD for each in taken.values()), name


@by("tests/consumer")
def test_cmake(block: Block) -> None:
    project = (ROOT / "tests/consumer/CMakeLists.txt").read_text()
    for command, arguments in re.findall(r"(\w+)\(([^)]*)\)", block.text):
        words = set(arguments.split()) - {"PRIVATE", "app", "REQUIRED", "COMPONENTS"}
        assert any(name == command and words <= set(given.split()) for name, given in re.findall(r"(\w+)\(([^)]*)\)", project))


@by(IMPORTS)
def test_imports(block: Block) -> None:
    ours: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("levada"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}"), alias.name
                ours.add(alias.name)
        elif isinstance(node, ast.ImportFrom):
            others |= {alias.name for alias in node.names}
    page = (ROOT / block.page).read_text()
    for name in others:
        assert name in ours or re.search(rf"\b{name}\b", page.replace(block.text, "")), f"{name} is not spoken of on the page"
