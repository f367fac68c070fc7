// One step of all ranks on canvas, with three lanes per rank. Dragging moves; Ctrl and wheel, buttons and the keyboard zoom and move.
import { colour, element, legend, redraw, say, showTipsOf } from "./dom.js";
import { formatCount, formatNs, shortenEnd } from "./format.js";
import { linearTicks } from "./axes.js";

const LANES = ["ranges", "compute", "communication"];
// Names with at least this share of the time of all ranges are in the legend.
const IN_LEGEND = 0.01;

// The colour of the k-th name. No two names share one, and the first ones differ most. Red hues are left out: the range of a
// cause is red.
export function rangeColour(k) {
  const hue = 40 + ((k * 137.508) % 290);
  return `hsl(${hue.toFixed(2)}, ${[32, 40, 24][k % 3]}%, ${[40, 31, 46][k % 3]}%)`;
}

// The activities of bars in the lane of communication, by number: colour and words.
const DOES = [["wait", "waits for another rank"], ["transfer", "transfers data"], ["whole", "in a collective, waiting not separated"]];

// The pieces of the critical path, by number: words.
const ON_PATH = ["works", "transfers data", "not explained"];

// Bars of a lane as { start, end, name, rows, does }, in ns.
function decode(numbers, unit, communication) {
  const bars = [];
  let at = 0;
  for (let i = 0; i + 3 < numbers.length; i += 4) {
    const start = at + numbers[i];
    at = start + numbers[i + 1];
    const [code, kinds] = [numbers[i + 2], DOES.length];
    bars.push({ start: start * unit, end: at * unit, name: communication ? Math.floor(code / kinds) : code, rows: numbers[i + 3], does: communication ? code % kinds : null });
  }
  return bars;
}

// `causes`: the rows of the slow ranks.
export function timelineOf(timeline, names, causes) {
  const verdictRanks = causes.map((s) => s.rank);
  const ranks = timeline.ranks.map((r) => ({
    rank: r.rank, window: r.window.map((t) => t * timeline.unit_ns), lanes: r.lanes.map((lane, i) => decode(lane, timeline.unit_ns, i === 2)),
  }));
  const path = [];
  for (let i = 0; i + 3 < timeline.path.length; i += 4) {
    const [row, kind, start, length] = timeline.path.slice(i, i + 4);
    path.push({ row, kind, start: start * timeline.unit_ns, end: (start + length) * timeline.unit_ns });
  }
  // The names of ranges with their times and colours, the longest first.
  const times = new Map();
  for (const r of ranks) for (const bar of r.lanes[0]) times.set(bar.name, (times.get(bar.name) || 0) + bar.end - bar.start);
  const ranges = [...times].sort((a, b) => b[1] - a[1]);
  const colours = new Map(ranges.map(([name], k) => [name, rangeColour(k)]));
  const inAll = ranges.reduce((sum, [, time]) => sum + time, 0);
  const guilty = new Map(causes.map((s) => [s.rank, s.evidence_range]));
  const span = timeline.span_ns;
  const view = { from: -span * 0.005, to: span * 1.005 };
  const focus = { row: 0, lane: 1, bar: 0 };
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "timeline",
    "aria-label": `Step ${timeline.step} of ${ranks.length} ranks. Plus and minus zoom, A and D move in time, 0 shows all; arrow keys go from bar to bar.` });
  const readout = element("p", { class: "readout" });
  const holder = element("div", { class: "holder tall scroll" }, canvas);
  const laneHeight = ranks.length > 128 ? 3 : ranks.length > 32 ? 6 : 14;
  const rowHeight = laneHeight * 3 + (ranks.length > 32 ? 3 : 8);
  const left = 64;
  const top = 22;
  let px = (t) => t;
  let shown = 0;
  const again = redraw(holder, draw);

  function limit() {
    const width = Math.min(Math.max(view.to - view.from, span / 20000), span * 1.01);
    view.from = Math.min(Math.max(view.from, -span * 0.005), span * 1.005 - width);
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

  function draw(width) {
    const ratio = devicePixelRatio || 1;
    const height = top + ranks.length * rowHeight + 4;
    canvas.width = Math.floor(width * ratio);
    canvas.height = Math.floor(height * ratio);
    canvas.style.setProperty("width", width + "px");
    canvas.style.setProperty("height", height + "px");
    px = (t) => left + ((t - view.from) / (view.to - view.from)) * (width - left - 8);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    axis(pen, width, height);
    shown = 0;
    ranks.forEach((rank, row) => drawRank(pen, rank, row, width));
    drawPath(pen, width);
    pen.clearRect(0, top, left - 4, height);
    ranks.forEach((rank, row) => label(pen, rank, row));
    canvas.dataset.bars = String(shown);
    canvas.dataset.from = String(view.from);
    canvas.dataset.to = String(view.to);
  }

  function axis(pen, width, height) {
    pen.strokeStyle = colour("grid");
    pen.fillStyle = colour("muted");
    pen.textAlign = "center";
    for (const tick of linearTicks(Math.max(0, view.from), view.to, Math.max(2, Math.floor(width / 110)))) {
      const x = Math.round(px(tick)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, top - 4);
      pen.lineTo(x, height);
      pen.stroke();
      pen.fillText(formatNs(tick), x, 12);
    }
  }

  // Whether a bar is the range in which a slow rank loses its time.
  function isGuilty(rank, lane, bar) {
    return lane < 2 && guilty.has(rank) && names[bar.name] === guilty.get(rank);
  }

  function style(rank, lane, bar) {
    if (isGuilty(rank, lane, bar)) return colour("critical");
    if (lane === 0) return colours.get(bar.name);
    return colour(lane === 1 ? "compute" : DOES[bar.does][0]);
  }

  function drawRank(pen, rank, row, width) {
    const y = top + row * rowHeight;
    // Start and end of the rank's step.
    pen.fillStyle = colour("muted");
    for (const t of rank.window) if (t >= view.from && t <= view.to) pen.fillRect(px(t) - 0.5, y - 1, 1, laneHeight * 3);
    rank.lanes.forEach((bars, lane) => {
      const laneTop = y + lane * laneHeight;
      bars.forEach((bar, index) => {
        if (bar.end < view.from || bar.start > view.to) return;
        const [x, end] = [Math.max(left, px(bar.start)), Math.min(width, px(bar.end))];
        pen.fillStyle = style(rank.rank, lane, bar);
        pen.fillRect(x, laneTop, Math.max(0.75, end - x - (end - x > 4 ? 0.75 : 0)), laneHeight - (laneHeight > 6 ? 1.5 : 0.5));
        shown += 1;
        if (laneHeight >= 12 && end - x > 36) barText(pen, rank.rank, bar, x, end, laneTop, lane);
        const focused = document.activeElement === canvas && focus.row === row && focus.lane === lane && focus.bar === index;
        if (focused) {
          pen.strokeStyle = colour("focus");
          pen.lineWidth = 2;
          pen.strokeRect(x, laneTop - 1, Math.max(3, end - x), laneHeight + 1);
          pen.lineWidth = 1;
        }
      });
    });
  }

  // The critical path: a line below the lanes of the rank that it is on, dashed where it is not explained.
  function drawPath(pen, width) {
    const y = (piece) => top + piece.row * rowHeight + laneHeight * 3 + 0.5;
    pen.strokeStyle = colour("path");
    pen.lineWidth = laneHeight > 6 ? 2.5 : 1.5;
    let before = null;
    for (const piece of path) {
      const [x, end] = [px(piece.start), px(piece.end)];
      if (end >= left && x <= width) {
        pen.setLineDash(piece.kind === 2 ? [3, 3] : []);
        pen.beginPath();
        if (before !== null && x >= left) {
          pen.moveTo(x, y(before));
          pen.lineTo(x, y(piece));
        }
        pen.moveTo(Math.max(left, x), y(piece));
        pen.lineTo(Math.min(width, end), y(piece));
        pen.stroke();
      }
      before = piece;
    }
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  function barText(pen, rank, bar, x, end, y, lane) {
    pen.fillStyle = colour(lane === 2 && bar.does === 0 ? "text" : lane || isGuilty(rank, lane, bar) ? "on-mark" : "on-range");
    pen.textAlign = "left";
    const letters = Math.floor((end - x - 6) / 6.2);
    if (letters > 4) pen.fillText(shortenEnd(names[bar.name], letters), x + 3, y + laneHeight - 4);
  }

  function label(pen, rank, row) {
    const marked = verdictRanks.includes(rank.rank);
    if (rowHeight < 14 && row % Math.ceil(14 / rowHeight) && !marked) return;
    pen.fillStyle = colour("text");
    pen.textAlign = "right";
    pen.font = (marked ? "bold " : "") + "12px system-ui, sans-serif";
    pen.fillText((marked || row === 0 ? "rank " : "") + rank.rank, left - 8, top + row * rowHeight + Math.min(rowHeight, laneHeight * 3) / 2 + 5);
  }

  function lines(rank, lane, bar, piece) {
    const what = lane === 2 ? DOES[bar.does][1] : LANES[lane];
    return [
      shortenEnd(names[bar.name], 120) + (bar.rows > 1 ? ` and ${formatCount(bar.rows - 1)} more` : ""), `rank ${rank.rank}, ${what}`,
      `${formatNs(bar.end - bar.start)}, from ${formatNs(bar.start)} to ${formatNs(bar.end)}`,
      bar.rows > 1 ? `${formatCount(bar.rows)} short rows drawn as one` : null,
      piece ? `on the critical path of the job for ${formatNs(piece.end - piece.start)}: ${ON_PATH[piece.kind]}` : null,
    ];
  }

  function found(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top - top];
    const row = Math.floor(y / rowHeight);
    const lane = Math.floor((y - row * rowHeight) / laneHeight);
    const rank = ranks[row];
    if (!rank || lane < 0 || lane > 2 || x < left) return null;
    const meets = (b) => px(b.start) - 1 <= x && x <= px(b.end) + 1;
    const bar = rank.lanes[lane].find(meets);
    return bar && { rank, lane, bar, piece: path.find((p) => p.row === row && meets(p)) };
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") return;
    drag = { x: event.clientX, from: view.from, to: view.to };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const move = ((event.clientX - drag.x) / (canvas.clientWidth - left - 8)) * (drag.to - drag.from);
      view.from = drag.from - move;
      view.to = drag.to - move;
      limit();
      again();
    }
  });
  showTipsOf(canvas, (event) => {
    const hit = found(event);
    return hit && lines(hit.rank, hit.lane, hit.bar, hit.piece);
  });
  canvas.addEventListener("wheel", (event) => {
    // Without Ctrl, the wheel scrolls the page.
    if (!event.ctrlKey) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - left) / (canvas.clientWidth - left - 8);
    zoom(event.deltaY > 0 ? 1.25 : 0.8, view.from + share * (view.to - view.from));
  }, { passive: false });
  canvas.addEventListener("dblclick", () => zoom(1e6));
  canvas.addEventListener("focus", again);
  canvas.addEventListener("blur", again);

  function go(rows, bars) {
    let at = focus.row * 3 + focus.lane;
    const bar = ranks[focus.row].lanes[focus.lane][focus.bar];
    const time = bar ? (bar.start + bar.end) / 2 : view.from;
    at = Math.min(ranks.length * 3 - 1, Math.max(0, at + rows));
    [focus.row, focus.lane] = [Math.floor(at / 3), at % 3];
    const lane = ranks[focus.row].lanes[focus.lane];
    if (rows) focus.bar = Math.max(0, lane.findIndex((b) => b.end >= time));
    focus.bar = Math.min(Math.max(0, lane.length - 1), Math.max(0, focus.bar + bars));
    const now = lane[focus.bar];
    if (now && (now.end < view.from || now.start > view.to)) {
      const width = view.to - view.from;
      view.from = (now.start + now.end - width) / 2;
      view.to = view.from + width;
      limit();
    }
    again();
    const text = now ? lines(ranks[focus.row], focus.lane, now) : [`rank ${ranks[focus.row].rank}, ${LANES[focus.lane]}: nothing`];
    readout.textContent = text.filter((line) => line !== null).join(" · ");
    say(text);
  }

  canvas.addEventListener("keydown", (event) => {
    const keys = {
      "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => zoom(1e6),
      a: () => pan(-0.2), d: () => pan(0.2),
      ArrowLeft: () => go(0, -1), ArrowRight: () => go(0, 1), ArrowUp: () => go(-1, 0), ArrowDown: () => go(1, 0),
    };
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  const button = (text, title, act) => element("button", { type: "button", title, "aria-label": title, onclick: act }, text);
  const large = ranges.filter(([, time]) => time >= IN_LEGEND * inAll);
  const rest = ranges.length - large.length;
  const known = [
    ...causes.filter((s) => s.evidence_range !== null).map((s) => ["accent", `${shortenEnd(s.evidence_range, 48)} of rank ${s.rank}, the cause`, null, s.evidence_range]),
    ...large.map(([name]) => ["range", shortenEnd(names[name], 48), colours.get(name), names[name]]),
  ];
  return element("div", {}, [
    element("div", { class: "controls" }, [
      element("span", { class: "choice" }, [button("+", "Zoom in", () => zoom(0.6)), button("−", "Zoom out", () => zoom(1 / 0.6)),
        button("◀", "Earlier", () => pan(-0.3)), button("▶", "Later", () => pan(0.3)), button("All", "Whole step", () => zoom(1e6))]),
      element("span", { class: "hint" }, "Drag to move, Ctrl and wheel to zoom. Keyboard: + − A D 0 and arrows."),
    ]),
    legend([...(path.length ? [["path", "critical path of the job"]] : []), ["compute", "compute"], ...DOES.filter((_, does) => ranks.some((r) => r.lanes[2].some((bar) => bar.does === does))), ...known]),
    rest > 0 ? element("p", { class: "hint" }, `${formatCount(rest)} more names of ranges take less than 1 % each. Every name has its own colour.`) : null,
    holder, readout,
  ]);
}
