"""Every page with Python is run by a test. Run by `script/check python-torch`."""

from __future__ import annotations

import re

from pages import ROOT

TESTED_BY = {
    "README.md": "tests_torch/test_guides.py",
    "docs/balance.md": "tests_torch/test_guides.py",
    "docs/data-loading.md": "tests_torch/test_guides.py",
    "docs/dataloader.md": "tests_torch/test_guides.py",
    "docs/evaluation.md": "tests_torch/test_guides.py",
    "docs/my-step-raised.md": "tests_torch/test_guides.py",
    "docs/migrate/fairscale.md": "tests_torch/test_guides.py",
    "docs/cuda-graphs.md": "tests_torch/test_guides.py",
    "docs/python/batches.md": "tests_torch/test_python_pages.py",
    "docs/python/corpus.md": "tests_torch/test_python_pages.py",
    "docs/python/exchange.md": "tests_torch/test_python_pages.py",
    "docs/python/feed.md": "tests_torch/test_python_pages.py",
    "docs/python/feed-reference.md": "tests_torch/test_python_pages.py",
    "docs/python/pipelines.md": "tests_torch/test_python_pages.py",
    "docs/python/reduce.md": "tests_torch/test_python_pages.py",
    "docs/getting-started.md": "tests_torch/test_getting_started.py",
    "docs/several-hosts.md": "tests_torch/test_several_hosts.py",
    "docs/migrate/accelerate.md": "tests_torch/test_migration.py",
    "docs/migrate/areal.md": "tests_torch/test_migration.py",
    "docs/migrate/dataloader.md": "tests_torch/test_migration.py",
    "docs/migrate/megatron-packing.md": "tests_torch/test_migration.py",
    "docs/migrate/megatron.md": "tests_torch/test_migration.py",
    "docs/migrate/ms-swift.md": "tests_torch/test_migration.py",
    "docs/migrate/torchdata.md": "tests_torch/test_migration.py",
    "docs/frameworks/datasets.md": "tests_frameworks/test_loops.py",
    "docs/frameworks/deepspeed.md": "tests_frameworks/test_loops.py",
    "docs/frameworks/fsdp.md": "tests_frameworks/test_loops.py",
    "docs/frameworks/torchtitan.md": "tests_frameworks/test_torchtitan.py",
    "docs/frameworks/energon.md": "tests_frameworks/test_energon.py",
    "docs/frameworks/jax.md": "tests_frameworks/test_jax.py",
    "docs/frameworks/lightning.md": "tests_frameworks/test_trainers.py",
    "docs/frameworks/transformers.md": "tests_frameworks/test_trainers.py",
    "docs/frameworks/ray-train.md": "tests_frameworks/test_ray_train.py",
    "docs/frameworks/transferqueue.md": "tests_frameworks/test_transferqueue.py",
}
WRITTEN_AS_PROGRAMS = {
    "docs/getting-started.md",
    "docs/several-hosts.md",
    "docs/migrate/torchdata.md",
    "docs/python/pipelines.md",
    "docs/frameworks/jax.md",
    "docs/frameworks/ray-train.md",
    "docs/frameworks/transferqueue.md",
}


def test_every_page_with_python_is_run_by_a_test() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    with_python = {str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text()}
    assert with_python == TESTED_BY.keys()
    for page, test in TESTED_BY.items():
        text = (ROOT / "python" / test).read_text()
        name = re.escape(page.rpartition("/")[2])
        # ranks.BLOCKS checks that each block is run; pages written as programs run all of theirs.
        is_run = re.search(rf'\brun\(\s*tmp_path,\s*"(?:[\w-]+/)*{name}"', text)
        assert re.search(rf'"(?:[\w-]+/)*{name}"', text), f"{test} does not name {page}"
        assert is_run or page in WRITTEN_AS_PROGRAMS, f"{test} does not run {page}"


def test_pages_of_frameworks_begin_with_the_framework() -> None:
    for page in (ROOT / "docs/frameworks").glob("*.md"):
        beginning = "\n".join(page.read_text().splitlines()[:15])
        assert not re.search(r"script/|\.ci|tests_|check frameworks", beginning), page
