"""Checks the first screen of a report, the proof of its verdict, and what it says of itself. Part of report_check.py."""

import pathlib
import re


def tip(report):
    return report.page.inner_text("#tip") if report.page.is_visible("#tip") else ""


def verdict_names(report, rank, check):
    """Checks that the first screen says which rank and machine it is, what it costs, how sure that is, and what to do."""
    title = report.page.inner_text("#verdict-word")
    answers = report.js("Object.fromEntries([...document.querySelectorAll('.answers div')].map((d) => [...d.children].map((c) => c.textContent)))")
    check(title == f"SLOW RANK {rank}" and " of each " in answers["cost"], f"the verdict is: {title}, {answers}")
    check(answers["machine"].startswith("host ") and answers["what to do"], f"the machine or what to do is missing: {answers}")
    sure = report.js("[...document.querySelectorAll('#verdict .tiles div')].map((d) => d.textContent).join()")
    check("how sure" in sure and "certain" in sure, f"the tiles do not say how sure the verdict is: {sure}")
    # All of that is on the first screen.
    for height, width in ((900, 1440), (844, 390)):
        report.page.set_viewport_size({"width": width, "height": height})
        report.drawn()
        bottom = report.js("document.querySelector('#verdict .answer').getBoundingClientRect().bottom")
        check(bottom <= height, f"at {width} px, the answers end at {bottom} px, below the first screen")
    report.resize(1440)
    check(report.page.locator("#verdict.cause").count() == 1, "the verdict does not look like a cause")
    check(report.page.locator(".findings a[href='#steps']").count() > 0, "the straggler's finding has no link")


def the_evidence_names_the_cause(report, rank, check):
    """Checks that the table and the map show the quantity that the verdict stands on: the cause comes first and has the most."""
    heads = report.js("[...document.querySelectorAll('#steps .tabled thead th')].map((h) => h.textContent)")
    rows = report.js("[...document.querySelectorAll('#steps .tabled tbody tr')].map((r) => [...r.children].map((c) => c.textContent))")
    check(rows[0][:2] == [str(rank), "cause"], f"the table of ranks begins with {rows[0]}")
    z = heads.index("z")
    number = lambda text: 101 if text == "above 100" else -101 if text == "below −100" else float(text) if text != "–" else 0
    check(all(number(row[z]) < number(rows[0][z]) for row in rows[1:]), f"z of the ranks: {[row[z] for row in rows]}")
    first = report.js("[...document.querySelectorAll('#lateness .strip .row')].map((r) => [r.querySelector('.label').textContent, r.classList.contains('culprit')])[0]")
    check(first == [f"rank {rank}", True], f"the proof begins with {first}")
    heat = report.js("JSON.parse(document.getElementById('run-data').textContent).heat")
    columns = len(heat["columns"])
    shown = heat["range"] if heat["range_name"] is not None else heat["own"]
    medians = {first: sorted(v or 0 for v in shown[i * columns:(i + 1) * columns])[columns // 2] for i, (first, _) in enumerate(heat["rows"])}
    check(max(medians, key=medians.get) == rank, f"the map of the verdict: {medians}")
    pressed = report.js("document.querySelector('#lateness button[aria-pressed=true]').dataset.value")
    check(pressed == ("range" if heat["range_name"] is not None else "own"), f"the map begins with {pressed}")


def says_what_it_is(report, source, check):
    """Checks that the page names its input, when and where it was recorded, and the command that made it."""
    facts = report.js("Object.fromEntries([...document.querySelectorAll('.facts div')].map((d) => [...d.children].map((c) => c.textContent)))")
    check(facts["input"].endswith(pathlib.Path(source).name) and re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", facts["recorded"]), f"facts: {facts}")
    check("hosts" in facts and "not covered" in facts, f"facts: {facts}")
    made = report.page.inner_text(".made")
    check(re.match(r"Made by rankscope \d+\.\d+\.\d+ with .* report ", made) and str(source) in made, f"the last line: {made}")


def roles_work(report, rank, check):
    """Checks the grid of roles: one cell a rank, the slow one marked, and its place in the tooltip."""
    page = report.page
    cells = report.js("[...document.querySelectorAll('#roles .role')].map((c) => [c.textContent, c.classList.contains('cause')])")
    slow = [text for text, is_cause in cells if is_cause]
    check(len(cells) == 8 and len(slow) == 1 and slow[0].startswith(f"rank {rank} "), f"the grid of roles: {cells}")
    page.locator("#roles .role.cause").hover()
    check("host" in tip(report) or "pid" in tip(report), f"over a role: {tip(report)!r}")
    page.mouse.move(2, 2)
    page.locator("#roles .role").first.focus()
    check("rank 0" in tip(report), f"the keyboard focus shows no tooltip for a role: {tip(report)!r}")
    before = report.js("document.querySelector('#roles .role.cause').textContent")
    page.click("#roles button[data-value=delay]")
    check(report.js("document.querySelector('#roles .role.cause').textContent") != before, "the grid does not switch")
