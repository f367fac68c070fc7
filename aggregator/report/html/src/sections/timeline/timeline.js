// The steps of all ranks on canvas. Dragging moves in time; Ctrl and wheel, two fingers, buttons and the keyboard zoom and move; a click or
// Enter opens the details of a bar and draws its arrows; Shift and dragging sum an area.
import { element, hideTip, legend, redraw, say, select, showTipsOf } from "../../../templates/report/dom.js";
import { NONE, formatCount, formatNs, shortenEnd } from "../../../templates/report/format.js";
import { numbers } from "../../../templates/report/axes.js";
import { groupBy } from "../../../templates/report/rows.js";
import { DOES, LANES, timelineData, waitsForDevice } from "./timeline_data.js";
import { arrowsOf } from "./timeline_arrows.js";
import { drawStep, firstAfter, layout } from "./timeline_pen.js";
import { detailsOf, detailsPane, tipLines } from "./timeline_details.js";
import { areaOf, sumsOf } from "./timeline_area.js";
import { searchField } from "./timeline_search.js";

// Names with at least this share of the time of all ranges are in the legend.
const IN_LEGEND = 0.01;
// A4 without margins, in CSS pixels: width, and the height that leaves room for the legend.
const PAPER = [700, 820];
// Pixels by which a pointer may move between press and release of a click.
const CLICK = 4;

// `causes`: the rows of the slow ranks.
function timelineOf(page, names, causes) {
  const timelines = timelineData(page, names);
  const guilty = new Map(causes.map((s) => [s.rank, s.evidence_range]));
  const verdictRanks = causes.map((s) => s.rank);
  let step = timelines.at(timelines.chosen);
  let view = { from: -step.span * 0.005, to: step.span * 1.005 };
  // The bar on which the keyboard is, and the bar of the pane.
  const focus = { row: 0, lane: 0, bar: 0 };
  let marked = null;
  let area = null;
  let shownWidth = 0;
  let paper = false;
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "timeline" });
  const reach = element("div", { class: "reach-of-ranks" }, canvas);
  const holder = element("div", { class: "holder ranks" }, reach);
  const readout = element("p", { class: "readout" });
  const cut = element("p", { class: "only-print" });
  const table = element("div", {});
  const sizes = () => layout(step.ranks.length, timelines.lanes.length);
  const { pane, open, close } = detailsPane(() => {
    marked = area = null;
    canvas.focus({ preventScroll: true });
    again();
  });
  const search = searchField(timelines, () => step, reveal, () => again());
  const again = redraw(holder, draw);

  function limit() {
    const width = Math.min(Math.max(view.to - view.from, step.span / 20000), step.span * 1.01);
    view.from = Math.min(Math.max(view.from, -step.span * 0.005), step.span * 1.005 - width);
    view.to = view.from + width;
  }

  function zoom(factor, at) {
    const centre = at === undefined ? (view.from + view.to) / 2 : at;
    view.from = centre - (centre - view.from) * factor;
    view.to = centre + (view.to - centre) * factor;
    limit();
    again();
  }

  function pan(share) {
    const move = (view.to - view.from) * share;
    view.from += move;
    view.to += move;
    limit();
    again();
  }

  // Gives a bar the focus of the keyboard and shows it: in time, and by scrolling to its rank.
  function reveal(at) {
    Object.assign(focus, at);
    const [row, bar] = [focus.row, focused()];
    if (bar && (bar.end < view.from || bar.start > view.to)) {
      const width = view.to - view.from;
      view.from = (bar.start + bar.end - width) / 2;
      view.to = view.from + width;
      limit();
    }
    const of = sizes();
    const top = row * of.row;
    if (top < holder.scrollTop) holder.scrollTop = top;
    if (of.top + top + of.row > holder.scrollTop + holder.clientHeight) holder.scrollTop = of.top + top + of.row - holder.clientHeight;
    marked = bar;
    again();
  }

  function draw(width) {
    const began = performance.now();
    shownWidth = paper ? Math.min(width, PAPER[0]) : width;
    const of = sizes();
    const inSight = paper ? PAPER[1] : Math.max(260, Math.round(innerHeight * 0.7));
    const rows = Math.min(step.ranks.length, Math.max(1, Math.floor((inSight - of.top) / of.row)));
    const height = paper ? of.top + rows * of.row + 4 : Math.min(of.full, inSight);
    reach.style.setProperty("height", (paper ? height : of.full) + "px");
    holder.style.setProperty("max-height", (paper ? height : inSight) + "px");
    cut.textContent = paper && rows < step.ranks.length ? `The first ${rows} of ${step.ranks.length} ranks are printed.` : "";
    const bar = marked || (document.activeElement === canvas ? focused() : null);
    const arrows = bar && bar === focused() ? arrowsOf(timelines, step, { row: focus.row, lane: timelines.lanes[focus.lane], bar }) : [];
    const shown = drawStep(canvas, { data: timelines, step, lanes: timelines.lanes, sizes: of, view, scroll: paper ? 0 : holder.scrollTop, height, width: shownWidth,
      guilty, verdictRanks, area, matches: search.matches(), marked: bar, arrows });
    Object.assign(canvas.dataset, { bars: shown, arrows: arrows.length, from: view.from, to: view.to, step: step.step, ms: (performance.now() - began).toFixed(2) });
  }

  const focused = () => step.ranks[focus.row].lanes[timelines.lanes[focus.lane]][focus.bar] || null;
  const timeAt = (x) => view.from + ((x - sizes().left) / (shownWidth - sizes().left - 8)) * (view.to - view.from);

  // The place under the pointer, or the nearest one.
  function placeAt(event) {
    const box = canvas.getBoundingClientRect();
    const of = sizes();
    const y = event.clientY - box.top - of.top + holder.scrollTop;
    const clamp = (value, most) => Math.min(Math.max(0, value), most);
    const row = clamp(Math.floor(y / of.row), step.ranks.length - 1);
    return { row, place: clamp(Math.floor((y - row * of.row) / of.lane), timelines.lanes.length - 1), time: clamp(timeAt(event.clientX - box.left), step.span) };
  }

  function selectArea(a, b) {
    area = areaOf(a, b);
    again();
  }

  function sumArea() {
    marked = null;
    open(...sumsOf(timelines, step, area));
    again();
  }

  function sumInSight() {
    area = { rows: [0, step.ranks.length - 1], places: null, from: Math.max(0, view.from), to: Math.min(step.span, view.to) };
    sumArea();
  }

  function found(event) {
    const box = canvas.getBoundingClientRect();
    const of = sizes();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top - of.top + holder.scrollTop;
    const row = Math.floor(y / of.row);
    const place = Math.floor((y - row * of.row) / of.lane);
    const rank = step.ranks[row];
    if (!rank || event.clientY - box.top < of.top || place < 0 || place >= timelines.lanes.length || x < of.left) return null;
    const lane = timelines.lanes[place];
    const slack = (view.to - view.from) / shownWidth;
    const time = timeAt(x);
    const index = firstAfter(rank.lanes[lane], time - slack);
    const bar = rank.lanes[lane][index];
    return bar && bar.start <= time + slack ? { row, place, index, rank, lane, bar, piece: pieceOf(row, time, slack) } : null;
  }

  const pieceOf = (row, time, slack) => step.path.find((p) => p.row === row && p.start - slack <= time && time <= p.end + slack);

  function openDetails(hit) {
    Object.assign(focus, { row: hit.row, lane: hit.place, bar: hit.index });
    marked = hit.bar;
    area = null;
    open(timelines.title(hit.bar), detailsOf(timelines, step, hit));
    again();
  }

  function openFocused() {
    const bar = focused();
    if (!bar) return;
    openDetails({ row: focus.row, place: focus.lane, index: focus.bar, rank: step.ranks[focus.row], lane: timelines.lanes[focus.lane], bar,
      piece: pieceOf(focus.row, (bar.start + bar.end) / 2, 0) });
  }

  pointers({ canvas, found, openDetails, placeAt, selectArea, sumArea, zoom, again, timeAt, limit, view: () => view, width: () => shownWidth - sizes().left - 8 });
  showTipsOf(canvas, (event) => {
    const hit = found(event);
    return hit && [...tipLines(timelines, hit), "Click for details"];
  });
  canvas.addEventListener("dblclick", () => zoom(1e6));
  canvas.addEventListener("focus", again);
  canvas.addEventListener("blur", again);
  holder.addEventListener("scroll", again);

  function go(lanes, bars) {
    const all = timelines.lanes.length;
    const now = focused();
    const time = now ? (now.start + now.end) / 2 : view.from;
    const at = Math.min(step.ranks.length * all - 1, Math.max(0, focus.row * all + focus.lane + lanes));
    [focus.row, focus.lane] = [Math.floor(at / all), at % all];
    const lane = step.ranks[focus.row].lanes[timelines.lanes[focus.lane]];
    if (lanes) focus.bar = Math.min(firstAfter(lane, time), Math.max(0, lane.length - 1));
    focus.bar = Math.min(Math.max(0, lane.length - 1), Math.max(0, focus.bar + bars));
    const rank = step.ranks[focus.row];
    const bar = focused();
    reveal(focus);
    marked = null;
    const of = timelines.lanes[focus.lane];
    const text = bar ? tipLines(timelines, { rank, lane: of, bar, piece: pieceOf(focus.row, (bar.start + bar.end) / 2, 0) }) : [`rank ${rank.rank}, ${LANES[of]}: nothing`];
    readout.textContent = text.filter((line) => line !== null).join(" · ");
    say(text);
  }

  canvas.addEventListener("keydown", (event) => {
    const all = timelines.lanes.length;
    const keys = {
      "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => zoom(1e6),
      a: () => pan(-0.2), d: () => pan(0.2), Enter: openFocused, " ": openFocused, Escape: close, "/": () => search.focus(),
      n: () => search.next(1), N: () => search.next(-1), s: sumInSight,
      ArrowLeft: () => go(0, -1), ArrowRight: () => go(0, 1), ArrowUp: () => go(-1, 0), ArrowDown: () => go(1, 0),
      Home: () => go(0, -1e9), End: () => go(0, 1e9), PageUp: () => go(-all, 0), PageDown: () => go(all, 0),
    };
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  function show(number) {
    step = timelines.at(Number(number));
    view = { from: -step.span * 0.005, to: step.span * 1.005 };
    Object.assign(focus, { row: 0, lane: 0, bar: 0 });
    marked = area = null;
    pane.hidden = true;
    readout.textContent = "";
    canvas.setAttribute("aria-label", `Step ${step.step} of ${step.ranks.length} ranks. Plus and minus zoom, A and D move in time, 0 shows all; arrow keys go from bar to bar, `
      + "Page Up and Page Down from rank to rank, Enter opens details, S sums what is in sight, slash goes to the search.");
    table.replaceChildren(asTable(timelines, step));
    search.again();
    again();
  }

  onPaper((on) => {
    paper = on;
    again();
  });
  show(step.step);
  const steps = timelines.steps.map((n) => [n, String(n) + (n === timelines.typical ? " (median)" : "")]);
  return element("div", {}, [controls(timelines.steps.length > 1 ? select("Step", steps, step.step, show) : null, { zoom, pan, sumInSight }, search.box),
    ...legendOf(timelines, step, causes), element("div", { class: "beside" }, [element("div", {}, [holder, cut, readout]), pane]), table]);
}

function controls(steps, { zoom, pan, sumInSight }, search) {
  const button = (text, title, act) => element("button", { type: "button", title, "aria-label": title, onclick: act }, text);
  return element("div", { class: "controls" }, [
    steps,
    element("span", { class: "choice" }, [button("+", "Zoom in", () => zoom(0.6)), button("−", "Zoom out", () => zoom(1 / 0.6)),
      button("◀", "Earlier", () => pan(-0.3)), button("▶", "Later", () => pan(0.3)), button("All", "Whole step", () => zoom(1e6)),
      button("Σ", "Sum what is in sight", sumInSight)]),
    search,
    element("span", { class: "hint for-mouse" }, "Click for details and arrows to what a bar waited for, drag to move, Shift and drag to sum an area, Ctrl and wheel to zoom."),
  ]);
}

// Wires mouse and fingers. One finger scrolls the page; sideways it moves in time. Two fingers zoom.
function pointers({ canvas, found, openDetails, placeAt, selectArea, sumArea, zoom, again, timeAt, limit, view, width }) {
  let drag = null;
  let pinch = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    drag = { x: event.clientX, y: event.clientY, from: view().from, to: view().to, moved: false, corner: event.shiftKey ? placeAt(event) : null };
    if (event.pointerType !== "touch") canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag || pinch) return;
    drag.moved = drag.moved || Math.abs(event.clientX - drag.x) + Math.abs(event.clientY - drag.y) > CLICK;
    if (!drag.moved) return;
    if (drag.corner) {
      selectArea(drag.corner, placeAt(event));
      return;
    }
    const move = ((event.clientX - drag.x) / width()) * (drag.to - drag.from);
    Object.assign(view(), { from: drag.from - move, to: drag.to - move });
    limit();
    again();
  });
  canvas.addEventListener("click", (event) => {
    const moved = drag && drag.moved;
    drag = null;
    const hit = moved ? null : found(event);
    if (!hit) return;
    openDetails(hit);
    hideTip();
  });
  // A mouse's click follows its release at once, and must know whether it ends a drag.
  canvas.addEventListener("pointerup", () => {
    const ended = drag;
    if (ended && ended.corner && ended.moved) sumArea();
    setTimeout(() => { if (drag === ended) drag = null; });
  });
  canvas.addEventListener("wheel", (event) => {
    // Without Ctrl, the wheel scrolls the page.
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.clientX - canvas.getBoundingClientRect().left));
  }, { passive: false });
  const fingers = (event) => {
    const [a, b] = [...event.touches].map((touch) => touch.clientX - canvas.getBoundingClientRect().left);
    return { apart: Math.max(20, Math.abs(a - b)), middle: (a + b) / 2 };
  };
  canvas.addEventListener("touchstart", (event) => {
    if (event.touches.length !== 2) return;
    event.preventDefault();
    pinch = { ...fingers(event), from: view().from, to: view().to };
  }, { passive: false });
  canvas.addEventListener("touchmove", (event) => {
    if (!pinch || event.touches.length !== 2) return;
    event.preventDefault();
    const now = fingers(event);
    Object.assign(view(), { from: pinch.from, to: pinch.to });
    const [at, factor] = [timeAt(pinch.middle), pinch.apart / now.apart];
    const shift = ((pinch.middle - now.middle) / width()) * (pinch.to - pinch.from) * factor;
    Object.assign(view(), { from: at - (at - pinch.from) * factor + shift, to: at + (pinch.to - at) * factor + shift });
    limit();
    again();
  }, { passive: false });
  canvas.addEventListener("touchend", (event) => { if (event.touches.length < 2) pinch = null; });
}

// Calls back when the page is printed, and when it is on the screen again.
function onPaper(change) {
  addEventListener("beforeprint", () => change(true));
  addEventListener("afterprint", () => change(false));
  matchMedia("print").addEventListener("change", (event) => change(event.matches));
}

// The range of one cause or several.
function ofCauses(causes) {
  const ranks = causes.map((s) => s.rank);
  const rest = ranks.length - 3;
  const named = ranks.slice(0, 3).join(", ") + (rest > 0 ? ` and ${formatCount(rest)} more` : "");
  return `${shortenEnd(causes[0].evidence_range, 48)} of ${ranks.length > 1 ? "ranks" : "rank"} ${named}, the cause`;
}

function legendOf(timelines, step, causes) {
  const has = (lane, test) => step.ranks.some((r) => r.lanes[lane].some(test));
  const inAll = timelines.ranges.reduce((sum, [, time]) => sum + time, 0);
  const large = timelines.ranges.filter(([, time]) => time >= IN_LEGEND * inAll);
  const rest = timelines.ranges.length - large.length;
  const guilty = new Set(causes.map((s) => s.evidence_range));
  const items = [
    ...groupBy(causes.filter((s) => s.evidence_range !== null), (s) => s.evidence_range).map((of) => ["accent", ofCauses(of), null, of[0].evidence_range]),
    ...DOES.filter((_, does) => has(3, (bar) => bar.does === does)),
    timelines.hasDevice ? ["compute", "kernels"] : ["compute", "operators"],
    has(2, (bar) => timelines.describe(bar.of).kind !== "kernel") ? ["memory", "copies and fills"] : null,
    timelines.hasDevice && timelines.lanes.includes(1) ? ["operator", "operators of the host"] : null,
    has(1, (bar) => waitsForDevice(timelines.describe(bar.of), 1)) ? ["host-waits", "host waits for the device"] : null,
    step.path.length ? ["path", "critical path of the job"] : null,
    ...large.map(([name]) => ["range", shortenEnd(name, 48) + (guilty.has(name) ? ", other ranks" : ""), timelines.colours.get(name), name]),
  ];
  return [legend(items.filter((item) => item !== null)),
    rest > 0 ? element("p", { class: "hint" }, `${formatCount(rest)} more names of ranges take less than 1 % each. Every name has its own colour.`) : null];
}

// The step in words and numbers: for each rank, the longest bar of each lane.
function asTable(timelines, step) {
  const longest = (bars) => bars.reduce((a, b) => (a && a.end - a.start >= b.end - b.start ? a : b), null);
  const cell = (bar) => (bar ? `${shortenEnd(timelines.title(bar), 60)}, ${formatNs(bar.end - bar.start)}` : NONE);
  const waited = (bars) => bars.filter((bar) => bar.does === 0).reduce((sum, bar) => sum + bar.end - bar.start, 0);
  const rows = step.ranks.map((r) => [r.rank, r.identity || NONE, formatNs(r.window[1] - r.window[0]), ...timelines.lanes.map((lane) => cell(longest(r.lanes[lane]))), formatNs(waited(r.lanes[3]))]);
  return numbers(`Step ${step.step} as a table: the longest bar of each lane`, ["rank", "where", "step", ...timelines.lanes.map((lane) => `longest of ${LANES[lane]}`), "waits for other ranks"], rows);
}

export function drawTimeline(data) {
  return [timelineOf(data.timeline, data.names, data.stragglers.filter((s) => data.slowRanks.includes(s.rank)))];
}
