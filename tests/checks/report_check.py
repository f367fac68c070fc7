#!/usr/bin/env python3
"""Opens reports in Chromium and uses them as a person does.

    tests/checks/report_check.py --aggregator BIN --run RUN --slow-rank N --clean RUN [--data DIR] [--out DIR] [--browser PATH]

RUN is a native run with slow rank N; --clean is the same workload without a slow rank. The other reports are those of
examples/traces/gloo8_slow5, of the same traces with hostile names, and of kineto/torchrec4_long_a2a and nd/d3_slow5_fwd if DIR
contains them. For each
report, the page must request only its own file, print nothing to the console, draw marks in every picture and name the right
rank; sorting, searching, hovering, switching and zooming must work with pointer and keyboard, and tapping and choosing a section
at the width of a phone. On paper, nothing lies over anything else. Screenshots at 1440 and 390 px, light and dark, are left in --out.

Last, two comparisons: clean and slow, and gloo8_slow5 with and without hostile names. These pages open on the comparison, which is
drawn, sorted and searched in the same way.
"""

import argparse
import gzip
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from playwright.sync_api import sync_playwright

# The shared module is one folder up.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from report_evidence import roles_work, says_what_it_is, the_evidence_names_the_cause, tip, verdict_names  # noqa: E402
from report_timeline import drawing_time, fingers_work, page_of_many_bars, use_timeline  # noqa: E402
from support import DATA, ROOT, find_browser, wait_until  # noqa: E402

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
WIDTHS = (1440, 390)
# Far more than a page needs, also on a busy machine.
PATIENCE_S = 60
# The limit for a page with a million bars; these have fewer.
MAX_BYTES = 20_000_000

# Names that try to become markup or code, to change the direction of writing, or to make a very long line.
HOSTILE = "</script><script>window.hacked=1</script>"
HOSTILE_NAMES = [
    HOSTILE,
    "<img src=x onerror=window.hacked=2>",
    "\"'><svg onload=window.hacked=3>",
    "${window.hacked=4}{{7*7}}<!--",
    "javascript:window.hacked=5",
    "\u202egnp.\u2066exe\u2028\u200b",
    "x" * 10_240,
    "__proto__",
    "constructor",
]


class Failed(Exception):
    """A report does not behave as required."""


def check(condition, what):
    if not condition:
        raise Failed(what)


def make_report(aggregator, sources, page):
    """Makes the page and returns its size."""
    made = subprocess.run([aggregator, "report", *sources, "-o", page], capture_output=True, text=True, check=False)
    check(made.returncode in (0, 3), f"report of {sources} ended with {made.returncode}: {made.stderr}")
    size = page.stat().st_size
    check(size < MAX_BYTES, f"{page.name} has {size} bytes")
    return size


class Report:
    """A page in its own browser. Collects errors, requests and messages that must not happen."""

    def __init__(self, playwright, browser, page, profile):
        self.path = page
        self.trouble = []
        self.context = playwright.chromium.launch_persistent_context(
            profile, executable_path=browser, headless=True, args=FLAGS, has_touch=True,
            viewport={"width": 1440, "height": 1000}, timeout=180_000)
        self.context.set_default_timeout(1000 * PATIENCE_S)
        self.page = self.context.new_page()
        self.page.on("console", lambda m: self.trouble.append(f"console: {m.text}") if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.trouble.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.trouble.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: None if r.url.startswith(("file://", "data:")) and r.url.split("#")[0] in
                     (page.as_uri(), "data:,") else self.trouble.append(f"request: {r.url}"))
        self.page.goto(page.as_uri())
        self.page.wait_for_selector("html[data-ready=true]")

    def js(self, code, argument=None):
        return self.page.evaluate(code, argument)

    def holds(self, condition):
        """Waits until the condition holds; returns whether it did. A page draws in later frames, which a busy machine delays.

        Playwright's wait_for_function evaluates text in the page, which the page's security policy forbids."""
        return wait_until(condition, PATIENCE_S, lambda: self.page.wait_for_timeout(20))

    def drawn(self):
        """Waits for two frames: a change of width or theme is drawn in the first."""
        self.js("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width):
        self.page.set_viewport_size({"width": width, "height": 1000})
        check(self.holds(lambda: self.js("innerWidth") == width), f"the window does not become {width} px wide")
        self.drawn()

    def calm(self, when):
        check(not self.trouble, f"{self.path.name}, {when}: {self.trouble[:5]}")


# What a section shows: its pictures with their marks, the colours of its canvases, its rows.
SHOWN = """(id) => {
    const section = document.getElementById(id);
    const coloured = (canvas) => {
        if (!canvas.width) return 0;
        const pen = Object.assign(document.createElement('canvas'), {width: canvas.width, height: canvas.height})
            .getContext('2d', {willReadFrequently: true});
        pen.drawImage(canvas, 0, 0);
        const data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
        const colours = new Set();
        for (let i = 0; i < data.length; i += 4 * 97) colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
        return colours.size;
    };
    return {
        place: section.querySelector('.draw') !== null,
        missing: section.querySelector('.absent') !== null,
        pictures: [...section.querySelectorAll('svg.picture')].map((s) => s.querySelectorAll('.mark').length),
        canvases: [...section.querySelectorAll('canvas')].map(coloured),
        rows: section.querySelectorAll('tbody tr').length,
        folded: section.querySelectorAll('details.extra').length,
        sentences: section.querySelectorAll('.draw > .say').length,
    };
}"""


def every_picture_has_marks(report):
    """Checks that each section has marks or names the data that it lacks. Returns the number of sections with marks."""
    drawn = 0
    for section in report.js("[...document.querySelectorAll('.chart-section')].filter((s) => !s.closest('[hidden]')).map((s) => s.id)"):
        # A canvas is drawn in a later frame than the page.
        report.holds(lambda: all(n > 2 for n in report.js(SHOWN, section)["canvases"]))
        found = report.js(SHOWN, section)
        if not found["place"]:
            check(found["missing"], f"#{section} draws nothing and gives no reason")
            continue
        drawn += 1
        check(all(n > 0 for n in found["pictures"]), f"#{section} has a picture without marks: {found}")
        check(all(n > 2 for n in found["canvases"]), f"#{section} has an empty canvas: {found}")
        check(found["pictures"] or found["canvases"] or found["rows"] or found["folded"] or found["sentences"],
              f"#{section} is empty: {found}")
    return drawn


def everything_has_a_name(report):
    """Checks that a screen reader finds a name for every control and picture."""
    nameless = report.js("""() => [...document.querySelectorAll(
        'button, input, select, canvas:not([aria-hidden]), svg.picture, [role=group], [role=region], [tabindex="0"]')]
        .filter((e) => !e.closest('[hidden]') && !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label')))
        .map((e) => e.outerHTML.slice(0, 120))""")
    check(not nameless, f"elements without a name: {nameless[:3]}")


def colours_are_unique(report):
    """Checks that no two entries of the timeline's legend share a colour, in both themes, and that the cause is named."""
    page = report.page
    entries = "[...document.querySelectorAll('#timeline .legend li')].map((l) => [l.textContent, getComputedStyle(l.firstChild).backgroundColor])"
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        report.drawn()
        found = report.js(entries)
        colours = [colour for _, colour in found]
        check(len(set(colours)) == len(colours) and len(found) > 3, f"{theme}: colours of the timeline: {found}")
    check(any("the cause" in text for text, _ in found), f"the legend does not name the range of the cause: {found}")
    page.emulate_media(color_scheme="light")


def labels(report, section):
    return report.js("(id) => [...document.querySelectorAll(`#${id} .bars .label`)].map((t) => t.textContent)", section)


def sorting_works(report, rank):
    page = report.page
    page.click("#steps button[data-value=verdict]")
    check(labels(report, "steps")[0].startswith(f"rank {rank}"), f"by verdict: {labels(report, 'steps')}")
    page.click("#steps button[data-value=rank]")
    check(labels(report, "steps")[0].startswith("rank 0"), f"by rank: {labels(report, 'steps')}")
    head = page.locator("#operators th", has_text="calls").locator("button")
    column = """() => [...document.querySelectorAll('#operators tbody tr')].map((r) => Number(r.children[2].textContent.replace(/\\D/g, '')))"""
    head.click()
    down = report.js(column)
    check(len(down) > 3 and down == sorted(down, reverse=True), f"calls, descending: {down}")
    head.focus()
    page.keyboard.press("Enter")
    up = report.js(column)
    check(up == sorted(up) and up != down, f"calls, ascending, by keyboard: {up}")
    check(page.locator("#operators th[aria-sort=ascending]").count() == 1, "no column is marked as sorted")


def searching_works(report):
    page = report.page
    page.click("#operators th:has-text('operator') button")
    names = "() => [...document.querySelectorAll('#operators tbody td:first-child')].map((c) => c.textContent)"
    wanted = report.js(names)[0][:4].lower()
    page.fill("#operators input", wanted)
    found = report.js(names)
    check(found and all(word in name.lower() for name in found for word in wanted.split()), f"search for {wanted!r}: {found}")
    page.fill("#operators input", "no such operator")
    check(report.js(names) == [], "a search for an unknown name finds rows")
    page.fill("#operators input", "")
    check(len(report.js(names)) >= len(found), "an empty search does not show all")


def hovering_works(report, rank):
    page = report.page
    page.mouse.move(2, 2)
    page.locator("#steps .bars rect.mark.compute").first.hover()
    check("rank 0" in tip(report) and "compute:" in tip(report), f"over a bar: {tip(report)!r}")
    canvas = page.locator("#lateness canvas:not(.scale)")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 14)
    check("rank 0" in tip(report) and "own excess" in tip(report), f"over the heat map: {tip(report)!r}")
    canvas.focus()
    for _ in range(rank):
        page.keyboard.press("ArrowDown")
    check(f"rank {rank}," in page.inner_text("#lateness .readout"), "the keyboard does not move over the heat map")
    check("rank" in page.inner_text("#live"), "nothing is read aloud")


def tapping_works(report):
    """Taps on pictures: the tooltip stays after the finger has left, until the next tap."""
    page = report.page
    for section, picture, words in (("lateness", "canvas:not(.scale)", "own excess"), ("timeline", "canvas", ", from "), ("steps", ".bars rect.mark", "rank ")):
        mark = page.locator(f"#{section} {picture}").first
        mark.evaluate("(e) => e.scrollIntoView({block: 'center', behavior: 'instant'})")
        box = mark.bounding_box()
        # Not every place of a picture has something to explain.
        places = [(box["x"] + share * box["width"], y) for y in range(int(box["y"]) + 3, int(box["y"] + min(box["height"], 120)), 7)
                  for share in (0.5, 0.3, 0.7)]
        for x, y in places:
            page.touchscreen.tap(x, y)
            page.wait_for_timeout(60)
            if tip(report):
                break
        page.wait_for_timeout(300)
        check(words in tip(report), f"{len(places)} taps on #{section}: {tip(report)!r}")
        top = report.js("document.getElementById('tip').getBoundingClientRect().top")
        page.mouse.wheel(0, 40)
        moved = report.holds(lambda: report.js("document.getElementById('tip').getBoundingClientRect().top") < top)
        check(moved and tip(report), f"#{section}: the tooltip does not move with its picture")
        brand = page.locator(".brand").bounding_box()
        page.touchscreen.tap(brand["x"] + 5, brand["y"] + 5)
        check(report.holds(lambda: not tip(report)), f"#{section}: another tap does not hide the tooltip")


def a_phone_has_contents(report):
    """Chooses sections at the width of a phone, and checks that what is not covered is there whole."""
    page = report.page
    report.resize(390)
    tapping_works(report)
    fingers_work(report, check)
    entries = report.js("[...document.querySelectorAll('#jump option')].map((o) => o.value).filter(Boolean)")
    sections = report.js("[...document.querySelectorAll('main > section')].filter((s) => !s.closest('[hidden]')).map((s) => s.id)")
    check(entries == sections, f"the contents list {entries}, and the sections are {sections}")
    place = """(id) => [document.getElementById(id).getBoundingClientRect().top, document.querySelector('.bar').getBoundingClientRect().bottom,
        innerHeight]"""
    for section in ("timeline", "findings", "operators"):
        page.select_option("#jump", section)

        def is_there(section=section):
            top, bar, window = report.js(place, section)
            return bar - 1 <= top + 26 and top < window / 2
        check(report.holds(is_there), f"#{section} is not in sight: {report.js(place, section)}")
    cut = report.js("[...document.querySelectorAll('.uncovered')].map((e) => e.scrollHeight - e.clientHeight)")
    check(all(hidden <= 1 for hidden in cut), f"data that is not covered is cut off: {cut} px")
    report.resize(1440)
    check(not page.is_visible("#jump") and page.is_visible("nav.contents"), "a wide page has another list of contents than its column")


def paper_is_readable(report):
    """Checks that no table or picture lies over another or over a heading when the page is printed."""
    page = report.page
    page.emulate_media(media="print", color_scheme="light")
    for width in WIDTHS:
        report.resize(width)
        # Opens folded tables, which are drawn anew for the width.
        report.js("dispatchEvent(new Event('beforeprint'))")
        over = report.js("""() => {
            const boxes = [...document.querySelectorAll('h1, h2, h3, table, svg.picture, canvas:not(.scale), .lead, summary')]
                .filter((e) => e.checkVisibility())
                .map((e) => ({name: `${e.tagName} of #${e.closest('section').id}`, e, box: e.getBoundingClientRect()}));
            const covers = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
            const found = [];
            boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
                if (!a.e.contains(b.e) && covers(a.box, b.box)) found.push(`${a.name} and ${b.name}`);
            }));
            return found;
        }""")
        check(not over, f"printed at {width} px, these lie over each other: {over[:5]}")
        cut = report.js("""() => [...document.querySelectorAll('.scroll, .uncovered')]
            .filter((e) => e.checkVisibility() && e.scrollHeight > e.clientHeight + 1 && getComputedStyle(e).overflowY !== 'visible')
            .map((e) => e.closest('section').id)""")
        check(not cut, f"printed at {width} px, parts of {cut} are cut off")
    page.emulate_media(media="screen", color_scheme="light")
    report.resize(1440)


def pixels(report, selector):
    return report.js("(s) => document.querySelector(s).toDataURL()", selector)


def switching_works(report):
    page = report.page
    seen = set()
    for mode in ("arrival", "own", "suffered"):
        page.click(f"#lateness button[data-value={mode}]")
        seen.add(pixels(report, "#lateness canvas:not(.scale)"))
    check(len(seen) == 3, "the heat map does not switch")
    page.click("#lateness button[data-value=own]")
    steps = page.locator("#steps select")
    if steps.count():
        before = page.inner_html("#steps .bars")
        steps.select_option(index=1)
        check(page.inner_html("#steps .bars") != before, "the breakdown of one step is that of all")
        steps.select_option(index=0)
    if page.locator("#buckets select").count():
        before = page.inner_html("#buckets .holder")
        page.locator("#buckets select").first.select_option(index=0)
        check(page.inner_html("#buckets .holder") != before, "the waterfall of another step is the same")
        check(page.locator("#buckets .mark.transfer").count() > 0, "no bucket moves data")
    for _ in range(3):
        page.click("#theme")
    page.click("#skew button[data-value=linear]")
    # The click removes the old chart; the browser draws the new one in its next frame.
    check(report.holds(lambda: page.locator("#skew circle.mark").count() > 0), "no skew on a linear scale")
    for details in page.locator("#tables details").all():
        details.locator("summary").click()
        details.locator("tbody tr").first.wait_for()


def zooming_works(report, rank):
    page = report.page
    canvas = page.locator("#timeline canvas")
    canvas.scroll_into_view_if_needed()
    span = "() => { const d = document.querySelector('#timeline canvas').dataset; return Number(d.to) - Number(d.from); }"
    whole = report.js(span)
    page.click("#timeline button[aria-label='Zoom in']")
    once = report.js(span)
    check(once < 0.8 * whole, f"the button does not zoom: {once} of {whole}")
    canvas.hover(position={"x": 400, "y": 60})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -240)
    page.keyboard.up("Control")
    check(report.holds(lambda: report.js(span) < once), "Ctrl and the wheel do not zoom")
    canvas.focus()
    page.keyboard.press("0")
    check(abs(report.js(span) - whole) < 0.01 * whole, "0 does not show all")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    check(f"rank {rank}," in page.inner_text("#timeline .readout"), "the keyboard does not begin at the rank of the verdict")
    chart = page.locator("#skew svg.picture")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    ticks = "() => [...document.querySelectorAll('#skew .axes text')].map((t) => t.textContent).join()"
    before = report.js(ticks)
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    page.mouse.up()
    check(report.js(ticks) != before, "dragging does not zoom a chart")
    page.click("#skew button:has-text('Whole range')")
    check(report.js(ticks) == before, "the whole range does not come back")


def selected(report):
    """Returns the selected tab, after checking that its panel is the visible one."""
    chosen = report.js("[...document.querySelectorAll('[role=tab][aria-selected=true]')].map((t) => t.getAttribute('aria-controls'))")
    shown = report.js("[...document.querySelectorAll('[role=tabpanel]')].filter((p) => p.getClientRects().length).map((p) => p.id)")
    check(chosen == shown and len(chosen) == 1, f"chosen {chosen}, shown {shown}")
    return chosen[0]


def tabs_work(report):
    """Switches tabs by mouse and keyboard, and leaves the comparison open."""
    page = report.page
    check(selected(report) == "diff", "the comparison is not shown first")
    page.click("#tab-run")
    check(selected(report) == "run", "a click does not show the run")
    page.click("#tab-diff")
    check(selected(report) == "diff", "a click does not show the comparison again")
    paths = report.js("[...document.querySelectorAll('.inputs span')].map((s) => [s.textContent, s.title])")
    check(len(paths) == 2 and all(path for _, path in paths), f"the page does not name both runs: {paths}")
    page.focus("#tab-diff")
    for key, expected in (("ArrowRight", "run"), ("ArrowRight", "diff"), ("ArrowLeft", "run"), ("End", "run"), ("Home", "diff")):
        page.keyboard.press(key)
        check(selected(report) == expected, f"{key} shows {selected(report)}, not {expected}")
        check(report.js("document.activeElement.id") == f"tab-{expected}", f"{key} leaves the focus behind")
    listed = report.js("[...document.querySelectorAll('#jump option')].map((o) => o.value).filter(Boolean)")
    check(listed and all(name.startswith("diff-") for name in listed), f"the contents of the comparison: {listed}")
    reachable = report.js("[...document.querySelectorAll('[role=tab]')].map((t) => t.tabIndex)")
    check(reachable == [0, -1], f"one tab is reached by the Tab key, not {reachable}")


def comparison_works(report, rank):
    page = report.page
    everything_has_a_name(report)
    marks = "() => document.querySelectorAll('#diff-changes .mark.point').length"
    for value in ("step", "all"):
        page.click(f"#diff-changes button[data-value={value}]")
        check(report.js(marks) > 0, f"no change is drawn for {value}")
    page.mouse.move(2, 2)
    page.locator("#diff-changes .mark.point").first.hover()
    check("change" in tip(report) and "between" in tip(report), f"over a change: {tip(report)!r}")
    page.locator("#diff-changes .row").nth(1).focus()
    check("between" in tip(report), "the keyboard focus shows no tooltip for a change")
    # Sort by the time in A: for two runs with equal rows, all changes are 0.
    head = page.locator("#diff-rows th").nth(4).locator("button")
    head.click()
    of_a = "() => [...document.querySelectorAll('#diff-rows tbody tr')].map((r) => r.children[4].textContent)"
    down = report.js(of_a)
    head.press("Enter")
    check(len(down) > 3 and report.js(of_a) != down, "the comparisons are not sorted")
    page.fill("#diff-rows input", f"rank {rank}")
    rows = report.js("() => [...document.querySelectorAll('#diff-rows tbody tr')].map((r) => r.textContent)")
    check(rows and all("rank" in row and str(rank) in row for row in rows), f"search for rank {rank}: {rows}")
    page.fill("#diff-rows input", "no such comparison")
    check(page.locator("#diff-rows tbody tr").count() == 0, "a search for an unknown name finds a comparison")
    page.fill("#diff-rows input", "")
    page.mouse.move(2, 2)
    report.calm("after the comparison was used")


def take_pictures(report, out, name):
    """Takes screenshots of the whole page at every width and theme. The page must fit the window."""
    page = report.page
    page.mouse.move(2, 2)
    wide = "document.documentElement.scrollWidth - innerWidth"
    for width in WIDTHS:
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            report.resize(width)
            fits = report.holds(lambda: report.js(wide) <= 0)
            check(fits, f"at {width} px the page of {name} is {report.js(wide)} px too wide")
            page.screenshot(path=out / f"{name}-{width}-{theme}.png", full_page=True)
    page.emulate_media(media="print", color_scheme="light")
    check(page.locator(".verdict .word").locator("visible=true").count() == 1 and not page.is_visible(".bar"), "the printed page lacks the verdict or shows buttons")
    page.emulate_media(media="screen", color_scheme="light")
    report.resize(1440)


def readme_pictures(report, out):
    """Takes the two pictures of the README: the head of the report, and lateness with the timeline."""
    page = report.page
    report.resize(1180)
    boxes = {name: page.locator(f"#{name}").bounding_box() for name in ("lateness", "timeline", "steps")}
    for name, top, last in (("report", 0, "timeline"), ("report-proof", boxes["lateness"]["y"], "lateness")):
        path = out / f"{name}.png"
        bottom = boxes[last]["y"] + boxes[last]["height"]
        width = boxes["lateness"]["width"] + 2 * boxes["lateness"]["x"]
        page.screenshot(path=path, full_page=True, clip={"x": 0, "y": top, "width": width, "height": bottom - top})
        check(path.stat().st_size < 250_000, f"{path.name} has {path.stat().st_size} bytes: too many for a README")
    report.resize(1440)


def use(report, rank):
    verdict_names(report, rank, check)
    everything_has_a_name(report)
    the_evidence_names_the_cause(report, rank, check)
    colours_are_unique(report)
    for act in (lambda: sorting_works(report, rank), lambda: searching_works(report), lambda: hovering_works(report, rank),
                lambda: switching_works(report), lambda: zooming_works(report, rank), lambda: a_phone_has_contents(report),
                lambda: paper_is_readable(report), lambda: use_timeline(report, rank, report.path.with_suffix(".pdf"), check)):
        act()
    report.calm("after it was used")


def hostile_traces(directory):
    """Writes gloo8_slow5 with hostile names, also for the range in the verdict."""
    for trace in sorted((ROOT / "examples/traces/gloo8_slow5").glob("rank*.json.gz")):
        document = json.loads(gzip.decompress(trace.read_bytes()))
        renamed = {}
        for event in document["traceEvents"]:
            name = event.get("name", "")
            if event.get("cat") not in ("cpu_op", "user_annotation") or name.startswith(("ProfilerStep", "gloo:", "c10d::", "record_param")) \
                    or "wait" in name.lower():
                continue
            if name == "injected_delay":
                event["name"] = HOSTILE
            else:
                known = renamed.setdefault(name, HOSTILE_NAMES[1 + len(renamed) % (len(HOSTILE_NAMES) - 1)])
                event["name"] = f"{known} {name}" if len(renamed) > 12 else known
        for key in ("hostName", "host_name"):
            if key in document:
                document[key] = HOSTILE
        (directory / trace.name).write_bytes(gzip.compress(json.dumps(document).encode(), 1))


def nothing_was_executed(report):
    check(report.js("window.hacked === undefined"), "a name was executed")
    scripts = report.js("[...document.querySelectorAll('script')].map((s) => s.type).sort()")
    check(scripts in (["application/json", "module"], ["application/json", "application/json", "module"]), f"scripts: {scripts}")
    check(report.js("document.querySelectorAll('img, iframe, object, embed, svg[onload]').length") == 0, "a name became an element")
    check(report.js("Object.prototype.hasOwnProperty.call(Object.prototype, 'hacked')") is False, "a prototype was changed")
    shown = " ".join(report.page.locator(".answers dd").all_text_contents())
    check("<script>window.hacked=1</script>" in shown, f"the verdict does not show the range's name as text: {shown}")
    text = report.js("document.getElementById('run-data').textContent")
    check("U+202E" in text and "\u202e" not in text, "a direction mark is not escaped")
    check("more characters" in text, "a name of ten kilobytes is not shortened")


def run(arguments, work):
    out = arguments.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    hostile = work / "hostile"
    hostile.mkdir()
    hostile_traces(hostile)
    sources = [("native", arguments.run, arguments.slow_rank), ("gloo8_slow5", ROOT / "examples/traces/gloo8_slow5", 5), ("hostile", hostile, 5)]
    for folder, rank in (("kineto/torchrec4_long_a2a", 2), ("nd/d3_slow5_fwd", 5)):
        real = arguments.data / folder
        if real.is_dir():
            sources.append((real.name, real, rank))
        else:
            print(f"skipped: the report of {folder}, which is not in {arguments.data}")
    opened = []
    with sync_playwright() as playwright:
        for name, source, rank in sources:
            page = out / f"{name}.html"
            size = make_report(arguments.aggregator, [source], page)
            report = Report(playwright, arguments.browser, page, work / f"profile-{name}")
            try:
                report.calm("when it was opened")
                opened_ms = report.js("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
                drawn = every_picture_has_marks(report)
                says_what_it_is(report, source, check)
                take_pictures(report, out, name)
                if name == "gloo8_slow5":
                    readme_pictures(report, out)
                if report.page.locator("#roles").count():
                    roles_work(report, rank, check)
                use(report, rank)
                if name == "hostile":
                    nothing_was_executed(report)
                every_picture_has_marks(report)
                report.calm("at the end")
            finally:
                report.context.close()
            opened.append(f"{name}: {drawn} sections drawn after {opened_ms:.0f} ms, {size / 1e6:.2f} MB")
        opened.append(many_bars(playwright, arguments, work, out))
        for name, before, after, rank in (("native-compared", arguments.clean, arguments.run, arguments.slow_rank),
                                          ("hostile-compared", ROOT / "examples/traces/gloo8_slow5", hostile, 5)):
            opened.append(compare(playwright, arguments, work, out, name, (before, after), rank))
    return opened


def many_bars(playwright, arguments, work, out):
    """Measures how long the timeline of gloo8_slow5 takes to draw if it has a hundred thousand bars."""
    report = Report(playwright, arguments.browser, page_of_many_bars(out / "gloo8_slow5.html"), work / "profile-many-bars")
    try:
        bars, ms = drawing_time(report, check)
        report.calm("with many bars")
    finally:
        report.context.close()
    return f"a timeline of {bars} bars: drawn in {ms:.0f} ms"


def compare(playwright, arguments, work, out, name, sources, rank):
    page = out / f"{name}.html"
    size = make_report(arguments.aggregator, sources, page)
    report = Report(playwright, arguments.browser, page, work / f"profile-{name}")
    try:
        report.calm("when it was opened")
        tabs_work(report)
        report.page.click("#tab-run")
        verdict_names(report, rank, check)
        report.page.click("#tab-diff")
        drawn = every_picture_has_marks(report)
        take_pictures(report, out, name)
        comparison_works(report, rank)
        sentence = report.page.text_content("#diff-verdict .sentence")
        if name == "native-compared":
            check(report.page.inner_text("#diff-verdict-word").lower() == "slower", f"the verdict of the comparison: {sentence}")
            check(re.match(rf"rank {rank} costs .* longer in \W?forward\W? ", sentence), f"the verdict does not name rank {rank}'s forward pass: {sentence}")
        else:
            nothing_was_executed(report)
            text = report.page.text_content("#diff-data")
            check("U+202E" in text and "\u202e" not in text, "a direction mark is not escaped")
            names = report.page.locator("#diff-one-sided td.name").all_text_contents()
            check(any("<img src=x onerror=window.hacked=2>" in found for found in names), f"new names: {names[:9]}")
        report.page.click("#tab-run")
        every_picture_has_marks(report)
        report.calm("at the end")
    finally:
        report.context.close()
    return f"{name}: {drawn} sections drawn, {size / 1e6:.2f} MB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aggregator", type=pathlib.Path, required=True)
    parser.add_argument("--run", type=pathlib.Path, required=True)
    parser.add_argument("--slow-rank", type=int, required=True)
    parser.add_argument("--clean", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, default=DATA)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/report")
    parser.add_argument("--browser", default=find_browser())
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    if arguments.browser is None:
        sys.exit("there is no Chromium: apt-get install chromium, or --browser PATH")
    with tempfile.TemporaryDirectory() as work:
        try:
            opened = run(arguments, pathlib.Path(work))
        except Failed as failed:
            sys.exit(f"FAILED: {failed}")
    print("; ".join(opened))
    print(f"{len(opened)} reports opened and used; pictures in {arguments.out}")


if __name__ == "__main__":
    main()
