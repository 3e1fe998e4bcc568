#!/usr/bin/env python3
"""Runs `levada feed --report` and looks at the page in a real browser: report_in_browser.py LEVADA-COMMAND.

The browser is Chromium, or what LEVADA_BROWSER names. It gets a minute, a profile in a temporary folder, and a process
group of its own, which is ended with it.
"""

import collections
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

RANKS = 4
STEPS = 60
LONGEST = 60  # seconds, of a browser's run
COMMAND = None


def feed(folder):
    """A page and a trace of a feed whose corpus has a name that no page should take for HTML."""
    corpus = folder / "<b onclick=x>corpus&amp;'.jsonl"
    with corpus.open("w", encoding="utf-8") as file:
        for number in range(800):
            file.write(json.dumps({"text": f"document {number} " * (3 + number % 7)}) + "\n")
    page, trace = folder / "page.html", folder / "trace.json"
    command = [COMMAND, "feed", corpus.name, "--mesh", "dp=2,tp=2", "--batch", "2", "--seq", "64", "--steps", str(STEPS)]
    command += ["--compute-ms", "1", "--report", page.name, "--trace", trace.name]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return page, trace, done


def browse(page, folder, *, dark=False):
    """The page's document after its script has run, and a picture of it."""
    picture = folder / ("dark.png" if dark else "light.png")
    command = [os.environ.get("LEVADA_BROWSER", "chromium"), "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", f"--user-data-dir={folder}/profile"]
    # Whatever the page might want from elsewhere, it does not get.
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=800,1000"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    command += [f"--screenshot={picture}", "--dump-dom", page.as_uri()]
    browser = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True
    )
    try:
        document, complaints = browser.communicate(timeout=LONGEST)
    finally:
        try:
            os.killpg(browser.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        browser.wait()
    if browser.returncode != 0 or not picture.exists():
        raise AssertionError(f"the browser ended with {browser.returncode}: {complaints}")
    return document, colours(picture)


def colours(picture):
    """How many pixels of a PNG have each colour (red, green, blue)."""
    data = picture.read_bytes()
    parts, at = collections.defaultdict(bytes), 8
    while at < len(data):
        (size,), name = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        parts[name] += data[at + 8 : at + 8 + size]
        at += 12 + size
    width, height, depth, kind = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    if depth != 8 or kind not in (2, 6):
        raise AssertionError(f"a PNG of depth {depth} and kind {kind}")
    channels = 3 if kind == 2 else 4
    count, before, rows = collections.Counter(), bytearray(width * channels), zlib.decompress(parts[b"IDAT"])
    for number in range(height):
        start = number * (width * channels + 1)
        row = unfilter(rows[start], bytearray(rows[start + 1 : start + 1 + width * channels]), before, channels)
        count.update(zip(row[0::channels], row[1::channels], row[2::channels]))
        before = row
    return count


def unfilter(method, row, above, channels):
    """A PNG's row as it was before its filter was applied."""
    for i in range(len(row)):
        if method == 0:
            break
        left = row[i - channels] if i >= channels else 0
        corner = above[i - channels] if i >= channels else 0
        if method == 4:
            guess = left + above[i] - corner
            _, _, predicted = min(
                (abs(guess - left), 0, left), (abs(guess - above[i]), 1, above[i]), (abs(guess - corner), 2, corner)
            )
        else:
            predicted = (0, left, above[i], (left + above[i]) // 2)[method]
        row[i] = (row[i] + predicted) & 255
    return row


class ReportInBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="levada-browser-", ignore_cleanup_errors=True)
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.page, cls.trace, cls.done = feed(cls.folder)
        cls.document, cls.colours = browse(cls.page, cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def section(self, name):
        return re.search(rf'<section class="card plot" id="{name}">.*?</section>', self.document, re.DOTALL).group(0)

    def test_its_script_runs_to_the_end_without_an_error(self):
        root = re.search("<html[^>]*>", self.document).group(0)
        self.assertIn('data-ready="yes"', root)
        self.assertNotIn("data-error", root)

    def test_every_rank_has_marks_in_every_plot(self):
        for rank in range(RANKS):
            row = re.search(rf'<div class="timeline-row" data-rank="{rank}".*?</svg>', self.section("waits"), re.DOTALL)
            self.assertRegex(row.group(0), r'<path class="k-step" d="M[^"]+z"', f"rank {rank}")
            self.assertIn(f'<tr data-rank="{rank}">', self.section("ranks"))
            cell = re.search(rf'data-bytes="(\d+)" title="from rank 0 to rank {rank}:', self.section("edges"))
            self.assertEqual(int(cell.group(1)), STEPS * 2 * 64 * (3 * 8 + 4))
        self.assertRegex(self.section("readers"), r'data-rank="0".*<path class="k-read" d="M')
        self.assertRegex(self.section("memory"), r'<path class="curve c-0" data-rank="0"')

    def test_names_are_text(self):
        self.assertIn("&lt;b onclick=x&gt;corpus&amp;amp;'.jsonl", self.document)
        self.assertNotIn("<b onclick", self.document)

    def test_the_picture_shows_plots_in_light_and_dark(self):
        _, dark = browse(self.page, self.folder, dark=True)
        for count, page, step in ((self.colours, (245, 246, 248), (225, 230, 236)), (dark, (18, 22, 27), (44, 53, 63))):
            self.assertGreater(count[page], 50_000, "the page's ground")
            self.assertGreater(count[step], 3_000, "the ranks' own steps")
            self.assertGreater(len(count), 100, "text and lines")

    def test_it_says_where_the_files_are_and_leaves_no_others(self):
        self.assertEqual(
            self.done.stderr, "levada: the report is in page.html\nlevada: the trace is in trace.json\n"
        )
        self.assertEqual([name for name in os.listdir(self.folder) if name.endswith(".partial")], [])

    def test_the_trace_has_every_step_of_every_rank(self):
        steps = collections.Counter()
        for event in json.loads(self.trace.read_text(encoding="utf-8"))["traceEvents"]:
            if event["name"] == "own step":
                steps[event["pid"]] += 1
        self.assertEqual(sorted(steps.values()), [STEPS] * RANKS)


if __name__ == "__main__":
    COMMAND = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
