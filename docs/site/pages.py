"""Collects the pages of the documentation's site in a folder: the repository's own, where links between them hold, and a
reference of the headers and of the Python package. Used by script/docs: pages.py FOLDER makes FOLDER/pages, and
FOLDER/mkdocs.yml, which has the site made in FOLDER/site."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# No link is `Feed[Batch](loader)`.
LINK = re.compile(r"(?<!\w)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
PYTHON = {
    "levada": "What programs import.",
    "levada.ddp": "Gradients of torch's DistributedDataParallel.",
    "levada.exchange": "Samples between models.",
    "levada.testing": "Tests for engines that are not part of Levada.",
    "levada.dropin": "In place of other packages.",
    "levada.dropin.areal": "AReaL's data manager and planner.",
    "levada.dropin.bridge": "Megatron-Bridge's broadcast of batches.",
    "levada.dropin.fairscale": "fairscale's ReduceScatterBucketer.",
    "levada.dropin.megatron": "Megatron-LM's sequence packing.",
    "levada.dropin.swift": "ms-swift's DataLoaderDispatcher.",
    "levada.dropin.torchdata": "torchdata's DataLoader2 and its reading services.",
}
PAGES = ("docs", "bench", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
"""Pages, and folders of pages."""
NAVIGATION = {
    "Levada": "README.md",
    "Start": "docs/getting-started.md",
    "Guides": {
        "Overview": "docs/README.md",
        "Data sets": "docs/dataloader.md",
        "Evaluation": "docs/evaluation.md",
        "Data": "docs/data-loading.md",
        "Balance": "docs/balance.md",
        "Several hosts": "docs/several-hosts.md",
        "Scale": "docs/scale.md",
        "Sizing": "docs/sizing.md",
        "Traps": "docs/traps.md",
        "My step raised": "docs/my-step-raised.md",
        "CUDA graphs": "docs/cuda-graphs.md",
        "Compatibility": "docs/compatibility.md",
        "Security": "docs/security.md",
        "Python": "docs/python/",
        "C++": "docs/cpp.md",
        "Move your job": "docs/migrate/",
        "Keep your trainer": "docs/frameworks/",
    },
    "Reference": {"Command": "docs/command.md", "Python": "reference/python/", "C++": "reference/cpp/"},
    "Design": "docs/design/",
    "Performance": "docs/performance.md",
    "Project": {"Changes": "CHANGELOG.md", "Contributing": "CONTRIBUTING.md"},
}
"""Titles, and pages, folders of pages, or more of the same."""


def tracked():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], stdout=subprocess.PIPE, check=True)
    return [pathlib.PurePosixPath(name) for name in listed.stdout.decode().split("\n") if name]


def public_headers(files):
    """By module."""
    modules = {}
    for path in files:
        hidden = path.name.endswith("_testing.h") or path.name in ("json.h", "conformance_kit.h") or "cli" in path.parts
        if path.parts[0] == "levada" and path.suffix == ".h" and not hidden:
            modules.setdefault("/".join(path.parts[1:-1]), []).append(path)
    return modules


def page_of(module):
    return pathlib.PurePosixPath("reference/cpp") / f"{module.replace('/', '-')}.md"


def anchor_of(header):
    return re.sub(r"[^a-z0-9_-]", "", str(header).lower())


def header_page(module, headers):
    parts = [f"# {module}\n"]
    for header in headers:
        text = (ROOT / header).read_text(encoding="utf-8")
        about = re.match(r"(?:// ?.*\n)+", text)
        lines = about.group().splitlines() if about else []
        parts.append(f"## {header} {{#{anchor_of(header)}}}\n\n" + "\n".join(line[2:].strip() for line in lines))
        parts.append(f"```cpp\n{text[about.end() if about else 0:].replace('#pragma once', '').strip()}\n```\n")
    return "\n\n".join(parts)


class Site:
    def __init__(self, folder):
        self.folder, self.files = folder, tracked()
        self.modules = public_headers(self.files)
        self.headers = {header: module for module, headers in self.modules.items() for header in headers}

    def write(self, path, text):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def copy_pages(self):
        for path in self.files:
            if path.suffix == ".md" and path.parts[0] in PAGES:
                self.write(path, self.with_links(path, (ROOT / path).read_text(encoding="utf-8")))
            elif path.suffix in (".svg", ".png"):
                self.copy(path)

    def copy(self, path):
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, self.folder / path)

    def with_links(self, page, text):
        """Points links to headers at their reference and links to folders at a page there. Copies other linked files."""

        def link(match):
            words, name, anchor = match.group(1), match.group(2), match.group(3) or ""
            target = self.target_of(pathlib.PurePosixPath((ROOT / page.parent / name).resolve().relative_to(ROOT)))
            return words if target is None else f"[{words}]({relative(target, page)}{anchor})"

        return LINK.sub(link, text)

    def target_of(self, path):
        """Returns the page or file that a link to a file or folder of the repository is to lead to, or None."""
        if path in self.headers:
            return f"{page_of(self.headers[path])}#{anchor_of(path)}"
        if (ROOT / path).is_dir():
            if path.parts[:1] == ("levada",):
                return "reference/cpp/README.md"
            pages = sorted(each for each in self.files if each.parent == path and each.suffix == ".md")
            return pages[0] if pages else None
        if path.suffix != ".md":
            self.copy(path)
        return path

    def write_reference(self):
        for module, headers in self.modules.items():
            self.write(page_of(module), header_page(module, headers))
        listed = "".join(f"- [{module}]({page_of(module).name})\n" for module in sorted(self.modules))
        self.write("reference/cpp/README.md", f"# C++\n\nThe public headers, by module.\n\n{listed}")
        for module, about in PYTHON.items():
            self.write(f"reference/python/{module}.md", f"# {module}\n\n{about}\n\n::: {module}\n")


def relative(to, page):
    return "/".join([".."] * (len(page.parts) - 1)) + ("/" if len(page.parts) > 1 else "") + str(to)


def navigation(entries, pages):
    """As mkdocs wants it: folders as lists of their pages, the first of which is README.md if there is one."""
    if isinstance(entries, dict):
        return [{title: navigation(each, pages)} for title, each in entries.items()]
    if not entries.endswith("/"):
        return entries
    found = sorted(str(page.relative_to(pages)) for page in (pages / entries).glob("*.md"))
    return sorted(found, key=lambda page: not page.endswith("README.md"))


def main(folder):
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    site = Site(pages)
    site.copy_pages()
    site.write_reference()
    own = pathlib.Path(__file__).resolve().parent
    shutil.copy(own / "iframe-worker.js", pages)
    settings = {
        "INHERIT": str(own / "mkdocs.yml"),
        "docs_dir": str(pages.resolve()),
        "site_dir": str((folder / "site").resolve()),
        "nav": navigation(NAVIGATION, pages),
    }
    (folder / "mkdocs.yml").write_text(json.dumps(settings, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
