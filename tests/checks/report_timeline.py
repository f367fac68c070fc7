"""Uses the timeline of a report as a person does: details, sums, search, steps, touch, keyboard, print. Part of report_check.py."""

import json
import random
import re

# Bars in the page that measures how long drawing takes.
MANY_BARS = 1_000_000
# Drawing so many takes about a tenth of this; a busy machine takes longer.
MOST_DRAW_MS = 1_500
CANVAS = "#timeline canvas"
SPAN = f"() => {{ const d = document.querySelector('{CANVAS}').dataset; return Number(d.to) - Number(d.from); }}"


def pane(report):
    return report.page.inner_text(".bar-details") if report.page.is_visible(".bar-details") else ""


def is_focused(report, selector):
    return report.js("(s) => document.activeElement === document.querySelector(s)", selector)


def click_a_bar(report, check):
    """Clicks on places of the first rank's row until the details open."""
    canvas = report.page.locator(CANVAS)
    canvas.evaluate("(e) => e.scrollIntoView({block: 'start', behavior: 'instant'})")
    report.page.mouse.wheel(0, -150)
    report.drawn()
    width = canvas.bounding_box()["width"]
    for y in range(26, 76, 6):
        for share in (0.5, 0.3, 0.7):
            canvas.click(position={"x": 70 + share * (width - 78), "y": y})
            if pane(report):
                return
    check(False, "a click on the timeline opens no details")


def details_work(report, rank, check):
    page = report.page
    click_a_bar(report, check)
    text = pane(report)
    check(f"rank\n{rank}" in text and "of step" in text and re.search(r"\d (ns|µs|ms|s), from ", text), f"details: {text}")
    check(is_focused(report, ".bar-details"), "the details do not get the focus")
    name = page.inner_text("#bar-title")
    check(name and name in page.inner_text("#live"), "the details are not read aloud")
    page.keyboard.press("Escape")
    check(not pane(report) and is_focused(report, CANVAS), "Escape does not close the details, or loses the focus")
    page.keyboard.press("Enter")
    check(name == page.inner_text("#bar-title"), "Enter does not open the details of the bar with the focus")
    page.click(".bar-details button")
    check(not pane(report), "the button does not close the details")
    # The last lane of a rank is communication, which knows its peers.
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
        if "data" in page.inner_text("#timeline .readout") or "waits for" in page.inner_text("#timeline .readout"):
            break
    page.keyboard.press("Enter")
    check("(last)" in pane(report) and "first" in pane(report) and "clock error" in pane(report), f"details of a collective: {pane(report)}")
    page.keyboard.press("Escape")


def arrows_work(report, check):
    """Of the bars of the first rank, those of collectives have arrows to or from other ranks, and kernels have one from their launch."""
    page = report.page
    page.focus(CANVAS)
    page.keyboard.press("Home")
    data = report.js("JSON.parse(document.getElementById('run-data').textContent).timeline")
    has_launches = any(number > 0 for number in next(s for s in data["steps"] if s["step"] == data["chosen"])["ranks"][0]["lanes"][2][4::5])
    found = {}
    for lane in range(4):
        for _ in range(40):
            report.drawn()
            doing = re.search(r"rank \d+, ([^·]+)", page.inner_text("#timeline .readout")).group(1).strip()
            arrows = int(page.get_attribute(CANVAS, "data-arrows"))
            found[doing] = max(found.get(doing, 0), arrows)
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Home")
    of_collectives = [arrows for doing, arrows in found.items() if "data" in doing or "waits for another" in doing]
    check(max(of_collectives, default=0) > 0, f"no arrow between ranks: {found}")
    check(not has_launches or found.get("kernel") == 1, f"no arrow from a launch to a kernel: {found}")


def rows_of(sums):
    """The rows of all lanes in the sums of an area."""
    return sum(int(number.replace("\u202f", "")) for number in re.findall(r"in ([\d\u202f]+) rows?", sums))


def areas_work(report, check):
    """Shift and dragging sum an area, and so does a key for all that is in sight; the details are beside the timeline."""
    page = report.page
    canvas = page.locator(CANVAS)
    canvas.evaluate("(e) => e.scrollIntoView({block: 'center', behavior: 'instant'})")
    report.drawn()
    box = canvas.bounding_box()
    x, y = box["x"] + 70 + 0.2 * (box["width"] - 78), box["y"] + 26
    page.keyboard.down("Shift")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 0.3 * (box["width"] - 78), y + 60, steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    report.drawn()
    text, title = pane(report), page.inner_text("#bar-title")
    check(" of rank" in title and re.search(r"in \d+ rows?", text) and "× " in text, f"sums of an area: {title}: {text}")
    over = report.js("""(s) => {
        const [a, b] = [document.querySelector(s), document.querySelector('.bar-details')].map((e) => e.getBoundingClientRect());
        return a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
    }""", CANVAS)
    check(not over, "the details cover the timeline")
    part = rows_of(text)
    page.keyboard.press("Escape")
    check(not pane(report) and is_focused(report, CANVAS), "Escape does not close the sums")
    page.keyboard.press("s")
    whole = rows_of(pane(report))
    check(whole > part > 0, f"all that is in sight has {whole} rows, a part of it {part}")
    page.keyboard.press("Escape")


def search_works(report, check):
    page = report.page
    word = report.js("document.querySelector('#timeline .legend .range').parentElement.title")
    before = report.js("(s) => document.querySelector(s).toDataURL()", CANVAS)
    page.keyboard.press("/")
    check(is_focused(report, "#timeline .search input"), "slash does not go to the search")
    page.keyboard.type(word[:12].upper())
    count = "#timeline .search .count"
    found = int(re.match(r"[\d\u202f]+", page.inner_text(count)).group().replace("\u202f", ""))
    check(found > 0, f"{word!r} is in the legend and not found: {page.inner_text(count)}")
    check(report.js("(s) => document.querySelector(s).toDataURL()", CANVAS) != before, "bars that do not match are not dimmed")
    page.keyboard.press("Enter")
    check(page.inner_text(count).startswith("1 of ") and "1 of" in page.inner_text("#live"), f"Enter: {page.inner_text(count)}")
    page.keyboard.press("Shift+Enter")
    check(page.inner_text(count).replace("\u202f", "").startswith(f"{found} of "), f"Shift+Enter: {page.inner_text(count)}")
    page.fill("#timeline .search input", "no such name")
    check(page.inner_text(count) == "0 bars", f"an unknown name: {page.inner_text(count)}")
    page.keyboard.press("Escape")
    check(page.input_value("#timeline .search input") == "" and page.inner_text(count) == "", "Escape does not clear the search")


def steps_can_be_chosen(report, check):
    data = report.js("JSON.parse(document.getElementById('run-data').textContent).timeline")
    drawn = [step["step"] for step in data["steps"]]
    check(report.js(f"Number(document.querySelector('{CANVAS}').dataset.step)") == data["chosen"], "the first step is not the chosen one")
    if len(drawn) < 2:
        return
    steps = report.page.locator("#timeline .controls select")
    options = [int(value) for value in steps.locator("option").evaluate_all("(all) => all.map((o) => o.value)")]
    check(options == sorted(drawn), f"steps {options} of {drawn}")
    other = next(step for step in drawn if step != data["chosen"])
    table = "#timeline details.numbers summary"
    steps.select_option(str(other))
    report.drawn()
    check(report.js(f"Number(document.querySelector('{CANVAS}').dataset.step)") == other, "another step is not drawn")
    check(f"Step {other} " in report.page.inner_text(table) and f"Step {other} " in report.page.get_attribute(CANVAS, "aria-label"),
          "another step is not in the table or the label")
    steps.select_option(str(data["chosen"]))
    report.drawn()


def the_table_has_all_ranks(report, check):
    ranks = report.js("""() => { const t = JSON.parse(document.getElementById('run-data').textContent).timeline;
        return t.steps.find((s) => s.step === t.chosen).ranks.map((r) => String(r.rank)); }""")
    rows = report.page.locator("#timeline details.numbers tbody tr td:first-child").all_text_contents()
    check(rows == ranks, f"ranks of the table: {rows}, of the timeline: {ranks}")


def fingers_work(report, check):
    """Two fingers zoom the timeline, and one scrolls the page."""
    page = report.page
    session = report.context.new_cdp_session(page)

    def place():
        page.locator(CANVAS).evaluate("(e) => e.scrollIntoView({block: 'center', behavior: 'instant'})")
        box = page.locator(CANVAS).bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + 60
    middle, y = place()

    def touch(kind, *places, up=0):
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y - up, "id": i} for i, x in enumerate(places)]})
    whole = report.js(SPAN)
    touch("touchStart", middle - 30, middle + 30)
    for apart in (40, 60, 90):
        touch("touchMove", middle - apart, middle + apart)
    touch("touchEnd")
    report.drawn()
    check(report.js(SPAN) < 0.6 * whole, f"two fingers do not zoom: {report.js(SPAN)} of {whole}")
    page.click("#timeline button[aria-label='Whole step']")
    middle, y = place()
    # Of many ranks, the finger scrolls the ranks first.
    scrolled = "scrollY + document.querySelector('#timeline .ranks').scrollTop"
    before = report.js(scrolled)
    touch("touchStart", middle)
    for up in range(10, 150, 10):
        touch("touchMove", middle, up=up)
    touch("touchEnd")
    check(report.holds(lambda: report.js(scrolled) > before + 40), "one finger on the timeline does not scroll the page")
    check(abs(report.js(SPAN) - whole) < 0.01 * whole, "one finger zooms")
    session.detach()


def printing_works(report, out, check):
    """Prints on A4 with the dark theme: the timeline is drawn anew for the width of the paper, in the light theme."""
    page = report.page
    page.emulate_media(color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    report.drawn()
    width = report.js(f"document.querySelector('{CANVAS}').getBoundingClientRect().width")
    check(0 < width <= 700, f"the printed timeline is {width} px wide")
    # The text of the axis is dark on paper: a canvas drawn in the dark theme would have light text.
    paper, text = report.js("""(s) => {
        const canvas = document.querySelector(s);
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, 20 * devicePixelRatio).data;
        let darkest = 255;
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) darkest = Math.min(darkest, data[i]);
        return [getComputedStyle(document.body).backgroundColor, darkest];
    }""", CANVAS)
    check(paper == "rgb(255, 255, 255)" and text < 100, f"the dark theme is printed on {paper}, with text of brightness {text}")
    page.emulate_media(media="null", color_scheme="dark")
    page.pdf(path=out, format="A4", print_background=True)
    page.emulate_media(media="screen", color_scheme="light")
    report.drawn()
    check(out.stat().st_size > 20_000, f"{out} has {out.stat().st_size} bytes")


def use_timeline(report, rank, out, check):
    """All of it but touch, which needs a narrow window."""
    details_work(report, rank, check)
    arrows_work(report, check)
    areas_work(report, check)
    search_works(report, check)
    steps_can_be_chosen(report, check)
    the_table_has_all_ranks(report, check)
    printing_works(report, out, check)


def page_of_many_bars(page):
    """A copy of a page whose timeline has MANY_BARS bars."""
    html = page.read_text()
    start = html.index('id="run-data">') + len('id="run-data">')
    end = html.index("</script>", start)
    data = json.loads(html[start:end])
    timeline = data["timeline"]
    step = next(step for step in timeline["steps"] if step["step"] == timeline["chosen"])
    draw = random.Random(1)
    lanes = [(rank, lane) for rank in step["ranks"] for lane in (0, 1, 3)]
    each = MANY_BARS // len(lanes) + 1
    length = step["span_ns"] // step["unit_ns"] // each
    for rank, lane in lanes:
        known = rank["lanes"][lane]
        width = 4 if lane < 2 else 5
        numbers = []
        for bar in range(each):
            like = draw.randrange(len(known) // width) * width
            numbers += [1, max(1, length - 1), known[like + 2], 1, *known[like + 4:like + width]]
        rank["lanes"][lane] = numbers
    timeline["steps"] = [step]
    text = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    copy = page.with_name("many_bars.html")
    copy.write_text(html[:start] + text + html[end:])
    return copy


def drawing_time(report, check):
    """Draws some times and returns the number of bars and the median time in ms."""
    times = []
    for _ in range(7):
        report.js("document.dispatchEvent(new Event('themechange'))")
        report.drawn()
        times.append(report.js(f"Number(document.querySelector('{CANVAS}').dataset.ms)"))
    bars, ms = report.js(f"Number(document.querySelector('{CANVAS}').dataset.bars)"), sorted(times)[3]
    check(bars >= MANY_BARS, f"{bars} bars are drawn")
    check(ms < MOST_DRAW_MS, f"{bars} bars take {ms} ms")
    return bars, ms
