#!/usr/bin/env python3
"""Opens report pages in a real browser: report_in_browser.py LEVADA-COMMAND REPORT-PAGES. One page is from a run of
`levada feed --report`; the program REPORT-PAGES writes the others.

The browser is Chromium, or the program that LEVADA_BROWSER names. It gets a minute, a profile in a temporary folder,
and a separate process group, which is killed with it.
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
LONGEST = 60  # seconds that the browser may run
LARGE = 3000  # ranks of the large page
COMMAND = PAGES = None


def feed(folder):
    """Returns a page and a trace of a feed whose corpus has a name that the page must not interpret as HTML."""
    corpus = folder / "<b onclick=x>corpus&amp;'.jsonl"
    with corpus.open("w", encoding="utf-8") as file:
        for number in range(800):
            file.write(json.dumps({"text": f"document {number} " * (3 + number % 7)}) + "\n")
    page, trace = folder / "page.html", folder / "trace.json"
    command = [COMMAND, "feed", corpus.name, "--tokenizer", "bytes", "--mesh", "dp=2,tp=2", "--batch", "2", "--seq", "64", "--steps", str(STEPS)]
    command += ["--compute-ms", "1", "--report", page.name, "--trace", trace.name]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return page, trace, done


def browse(page, folder, *, dark=False):
    """Returns the page's document after its script has run, and the colors of a screenshot."""
    picture = folder / ("dark.png" if dark else "light.png")
    command = [os.environ.get("LEVADA_BROWSER", "chromium"), "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", f"--user-data-dir={folder}/profile"]
    # The page must not load anything from elsewhere.
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
    """Counts the pixels of each color (red, green, blue) in a PNG."""
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
    """Undoes the filter of a PNG's row."""
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


def after(page, script):
    """Writes a copy of the page that also runs the script, in place of a visitor."""
    text = page.read_text(encoding="utf-8")
    changed = page.with_name("changed.html")
    changed.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return changed


def section(document, name):
    return re.search(rf'<section class="[^"]*" id="{name}">.*?</section>', document, re.DOTALL).group(0)


def milliseconds(document):
    """Returns the milliseconds from opening the page until it was drawn. Fails if its script has not run to the end."""
    root = re.search("<html[^>]*>", document).group(0)
    ready = re.search(r'data-ready="(\d+)"', root)
    if not ready or "data-error" in root:
        raise AssertionError(root)
    return int(ready.group(1))


class FeedInBrowser(unittest.TestCase):
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
        return section(self.document, name)

    def test_its_script_runs_without_an_error(self):
        self.assertGreater(milliseconds(self.document), 0)

    def test_every_rank_has_marks_in_every_plot(self):
        for rank in range(RANKS):
            row = re.search(rf'<div class="timeline-row" data-rank="{rank}".*?</svg>', self.section("waits"), re.DOTALL)
            self.assertRegex(row.group(0), r'<path class="k-step" d="M[^"]+z"', f"rank {rank}")
            self.assertIn(f'<tr data-rank="{rank}">', self.section("ranks"))
            cell = re.search(rf'data-bytes="(\d+)" title="from rank 0 to rank {rank}:', self.section("edges"))
            self.assertEqual(int(cell.group(1)), STEPS * 2 * 64 * (3 * 8 + 4))
        self.assertRegex(self.section("readers"), r'data-rank="0".*<path class="k-read" d="M')
        self.assertRegex(self.section("memory"), r'<path class="curve c-0" data-rank="0"')

    def test_a_plot_is_read_with_the_arrow_keys_and_the_pointer(self):
        press = "document.querySelectorAll('#waits .stage')[1].dispatchEvent(new KeyboardEvent('keydown', {key: '%s'}));"
        point = "document.querySelector('#memory .stage').dispatchEvent(new PointerEvent('pointermove', {clientX: 400}));"
        for script, shown in ((press % "ArrowRight", "<b>rank 1 dp0 tp1, at "), (point, "</i>rank 0 ")):
            document, _ = browse(after(self.page, script), self.folder)
            self.assertRegex(document, f'<div id="tip" role="status" style="[^"]*visible[^"]*">.*{shown}')
        document, _ = browse(after(self.page, press % "ArrowRight" + press % "Escape"), self.folder)
        self.assertRegex(document, '<div id="tip" role="status" style="[^"]*hidden')

    def test_names_are_text(self):
        self.assertIn("&lt;b onclick=x&gt;corpus&amp;amp;'.jsonl", self.document)
        self.assertNotIn("<b onclick", self.document)

    def test_the_picture_shows_plots_in_light_and_dark(self):
        _, dark = browse(self.page, self.folder, dark=True)
        for count, page, step in ((self.colours, (245, 246, 248), (225, 230, 236)), (dark, (18, 22, 27), (44, 53, 63))):
            self.assertGreater(count[page], 50_000, "the page's ground")
            self.assertGreater(count[step], 3_000, "the ranks' own steps")
            self.assertGreater(len(count), 100, "text and lines")

    def test_it_prints_the_paths_of_its_files_and_leaves_no_partial_ones(self):
        self.assertEqual(
            self.done.stderr, "levada: wrote the report to page.html\nlevada: wrote the trace to trace.json\n"
        )
        self.assertEqual([name for name in os.listdir(self.folder) if name.endswith(".partial")], [])

    def test_the_trace_has_every_step_of_every_rank(self):
        steps = collections.Counter()
        for event in json.loads(self.trace.read_text(encoding="utf-8"))["traceEvents"]:
            if event["name"] == "own step":
                steps[event["pid"]] += 1
        self.assertEqual(sorted(steps.values()), [STEPS] * RANKS)


class LargeReportInBrowser(unittest.TestCase):
    """3,000 ranks with names that try to be markup."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="levada-browser-", ignore_cleanup_errors=True)
        cls.folder = pathlib.Path(cls.temporary.name)
        subprocess.run([PAGES, cls.folder], check=True, timeout=LONGEST)
        cls.page = cls.folder / "large.html"
        cls.document, cls.colours = browse(cls.page, cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_it_is_small_and_quickly_drawn(self):
        self.assertLess(self.page.stat().st_size, 5_000_000)
        self.assertLess(milliseconds(self.document), 20_000, "on a busy machine; docs/design/report.md says what it takes")

    def test_it_draws_all_ranks_together_and_those_that_waited_most(self):
        waits = section(self.document, "waits")
        self.assertEqual(len(re.findall('<div class="timeline-row" data-rank=', waits)), 1 + 48)
        self.assertRegex(waits, r'data-rank="all".*?<path class="k-read" d="M')
        self.assertIn("48 of 3,000 ranks: those that waited most.", waits)
        self.assertEqual(len(re.findall('class="curve c-', section(self.document, "memory"))), 40)
        self.assertEqual(len(re.findall("<td", section(self.document, "edges"))), 3 * 64)
        self.assertEqual(len(re.findall('class="curve c-', section(self.document, "work"))), 2)

    def test_the_work_of_steps_is_shown_over_bound_and_mean_with_tokens_and_padding(self):
        self.assertIn("6.0 M tokens per step, 2.0% of them padding", section(self.document, "work"))
        point = "document.querySelector('#work .stage').dispatchEvent(new PointerEvent('pointermove', {clientX: 400}));"
        document, _ = browse(after(self.page, point), self.folder)
        tip = re.search('<div id="tip" role="status" style="[^"]*visible[^"]*">(.*?)</div></div>', document).group(1)
        for shown in ("balanced 1.020x, of the mean 1.275x", "in the samples' order 1.500x, of the mean 1.875x",
                      "6.0 M tokens per step, 2.0% of them padding"):
            self.assertIn(shown, tip)

    def test_its_table_can_show_all_ranks(self):
        ranks = section(self.document, "ranks")
        self.assertEqual(len(re.findall("<tr data-rank=", ranks)), 256)
        self.assertIn("Show all 3,000 ranks", ranks)
        script = "document.querySelector('.more').click(); document.querySelectorAll('#ranks th button')[4].click();"
        document, _ = browse(after(self.page, script), self.folder)
        rows = re.findall('<tr data-rank="([0-9]+)"', section(document, "ranks"))
        self.assertEqual(rows, [str(rank) for rank in reversed(range(LARGE))], "by the time that they waited")

    def test_names_are_text(self):
        hostile = '&lt;/script&gt;&lt;img src=x onerror="document.documentElement.dataset.pwned=1"&gt;&amp;amp;'
        self.assertGreater(self.document.count(hostile), 10)
        self.assertNotIn("<img", self.document)
        self.assertNotIn("data-pwned", self.document)
        pipeline, _ = browse(self.folder / "pipeline.html", self.folder)
        self.assertIn(hostile, section(pipeline, "pipeline"))
        self.assertNotIn("<img", pipeline)

    def test_a_pipeline_has_its_graph_and_a_row_for_each_stage_and_process(self):
        pipeline, _ = browse(self.folder / "pipeline.html", self.folder)
        milliseconds(pipeline)
        for document, name, caller in ((self.document, "pipeline-0", "the feed"), (pipeline, "pipeline", "your loop")):
            shown = section(document, name)
            self.assertIn(">2 workers</text>", shown)
            self.assertIn(">99.8/s, works 90%</text>", shown)
            self.assertIn(f">{caller}</text>", shown)
            self.assertEqual(shown.count('<path class="way'), 4, "from stage to stage, and to the caller")
            self.assertEqual(shown.count('class="node slowest"'), 1)
            self.assertEqual(shown.count("<tr data-process="), 2 + 2 * 2)
            self.assertIn(">bottleneck</span>", shown)
        self.assertIn("The pipelines of 84 more ranks are not shown.", self.document)


if __name__ == "__main__":
    COMMAND, PAGES = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
    unittest.main()
