// Draws one step of all ranks on a canvas. The canvas is as high as the window onto the ranks, not as all ranks.
import { colour } from "../../../templates/report/dom.js";
import { formatNs, shortenEnd } from "../../../templates/report/format.js";
import { linearTicks } from "../../../templates/report/axes.js";
import { drawArrows } from "./timeline_arrows.js";
import { DOES, waitsForDevice } from "./timeline_data.js";

const LEFT = 70;
const TOP = 22;
const PALETTE = ["grid", "muted", "text", "paper", "critical", "compute", "memory", "operator", "wait", "transfer", "whole", "path", "focus", "on-mark", "on-range"];

// Heights for a number of ranks and lanes.
export function layout(ranks, lanes) {
  const lane = ranks > 128 ? 3 : ranks > 32 ? 5 : ranks > 16 ? 10 : ranks > 4 ? 13 : 17;
  const row = lane * lanes + (ranks > 32 ? 3 : 8);
  return { lane, row, left: LEFT, top: TOP, full: TOP + ranks * row + 4 };
}

// Diagonal lines: waiting, whatever the theme.
function hatch(pen, ground, line) {
  const tile = Object.assign(document.createElement("canvas"), { width: 7, height: 7 });
  const of = tile.getContext("2d");
  of.fillStyle = ground;
  of.fillRect(0, 0, 7, 7);
  of.strokeStyle = line;
  of.lineWidth = 1.2;
  for (const shift of [-7, 0, 7]) {
    of.beginPath();
    of.moveTo(shift, 7);
    of.lineTo(shift + 7, 0);
    of.stroke();
  }
  return pen.createPattern(tile, "repeat");
}

// The first bar that ends at or after a time.
export function firstAfter(bars, time) {
  let [low, high] = [0, bars.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bars[middle].end < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Draws. `show`: { data, step, lanes, sizes, view, scroll, height, width, guilty, verdictRanks, matches, marked, arrows, area }. `matches` is a set of bars
// or null, `marked` a bar or null, `arrows` are its arrows, `area` is what is summed or null. Returns the number of bars in sight.
export function drawStep(canvas, show) {
  const { step, sizes, view, width, height, scroll } = show;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.floor(width * ratio);
  canvas.height = Math.floor(height * ratio);
  canvas.style.setProperty("width", width + "px");
  canvas.style.setProperty("height", height + "px");
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  // Styles are read once: a bar has no time to ask for its colour.
  const paint = Object.fromEntries(PALETTE.map((name) => [name, colour(name)]));
  const fine = sizes.lane > 5;
  paint.waiting = fine ? hatch(pen, paint.wait, paint.transfer) : paint.wait;
  paint.hostWaits = fine ? hatch(pen, paint.paper, paint.operator) : paint.grid;
  const px = (t) => sizes.left + ((t - view.from) / (view.to - view.from)) * (width - sizes.left - 8);
  const rowTop = (row) => sizes.top + row * sizes.row - scroll;
  const context = { ...show, pen, paint, px, rowTop };
  const from = Math.max(0, Math.floor(scroll / sizes.row));
  const to = Math.min(step.ranks.length, Math.ceil((scroll + height - sizes.top) / sizes.row));
  axis(context);
  let shown = 0;
  pen.save();
  pen.beginPath();
  pen.rect(0, sizes.top - 2, width, height);
  pen.clip();
  for (let row = from; row < to; row++) shown += drawRow(context, row);
  drawPath(context);
  drawArrows(context);
  drawArea(context);
  pen.restore();
  // The axis stays in sight while the ranks scroll under it.
  pen.clearRect(0, sizes.top, sizes.left - 4, height);
  for (let row = from; row < to; row++) label(context, row);
  return shown;
}

function axis({ pen, paint, px, view, sizes, width, height }) {
  pen.strokeStyle = paint.grid;
  pen.fillStyle = paint.muted;
  pen.textAlign = "center";
  for (const tick of linearTicks(Math.max(0, view.from), view.to, Math.max(2, Math.floor(width / 110)))) {
    const x = Math.round(px(tick)) + 0.5;
    pen.beginPath();
    pen.moveTo(x, sizes.top - 4);
    pen.lineTo(x, height);
    pen.stroke();
    pen.fillText(formatNs(tick), Math.min(x, width - 22), 12);
  }
}

// The fill of a bar and of the text on it.
function style({ data, paint, guilty }, rank, lane, bar) {
  if (lane === 3) return bar.does === 0 ? [paint.waiting, paint.text] : [paint[DOES[bar.does][0]], paint["on-mark"]];
  const of = data.describe(bar.of);
  if (guilty.has(rank) && guilty.get(rank) === of.name) return [paint.critical, paint["on-mark"]];
  if (lane === 0) return [data.colours.get(of.name), paint["on-range"]];
  if (lane === 2) return [of.kind === "kernel" ? paint.compute : paint.memory, paint["on-mark"]];
  if (waitsForDevice(of, lane)) return [paint.hostWaits, paint.text];
  return data.hasDevice ? [paint.operator, paint["on-range"]] : [paint.compute, paint["on-mark"]];
}

function drawRow(context, row) {
  const { pen, paint, px, rowTop, step, sizes, lanes, view, width, matches, marked } = context;
  const rank = step.ranks[row];
  const y = rowTop(row);
  // Start and end of the rank's step.
  pen.fillStyle = paint.muted;
  for (const t of rank.window) if (t >= view.from && t <= view.to) pen.fillRect(px(t) - 0.5, y - 1, 1, sizes.lane * lanes.length);
  let shown = 0;
  lanes.forEach((lane, k) => {
    const bars = rank.lanes[lane];
    const laneTop = y + k * sizes.lane;
    const height = sizes.lane - (sizes.lane > 6 ? 1.5 : 0.5);
    let covered = -1;
    for (let i = firstAfter(bars, view.from); i < bars.length && bars[i].start <= view.to; i++) {
      const bar = bars[i];
      const [x, end] = [Math.max(sizes.left, px(bar.start)), Math.min(width, px(bar.end))];
      const matching = matches && matches.has(bar);
      shown += 1;
      // A bar within the pixel of the bar before it changes nothing that can be seen.
      if (end < covered && !matching && bar !== marked) continue;
      covered = Math.floor(x) + 1;
      const [fill, ink] = style(context, rank.rank, lane, bar);
      pen.globalAlpha = matches && !matching ? 0.18 : 1;
      pen.fillStyle = fill;
      pen.fillRect(x, laneTop, Math.max(matching ? 2 : 0.75, end - x - (end - x > 4 ? 0.75 : 0)), height);
      if (sizes.lane >= 12 && end - x > 36) barText(context, bar, [x, end, laneTop], ink);
      pen.globalAlpha = 1;
      if (bar === marked) {
        pen.strokeStyle = paint.focus;
        pen.lineWidth = 2;
        pen.strokeRect(x, laneTop - 1, Math.max(3, end - x), sizes.lane + 0.5);
        pen.lineWidth = 1;
      }
    }
  });
  return shown;
}

function barText({ pen, paint, data, sizes }, bar, [x, end, y], ink) {
  const letters = Math.floor((end - x - 6) / 6.2);
  if (letters < 5) return;
  const text = shortenEnd(data.title(bar), letters);
  pen.textAlign = "left";
  if (ink === paint.text) {
    // Letters on hatching need a ground.
    pen.fillStyle = bar.does === 0 ? paint.wait : paint.paper;
    pen.fillRect(x + 2, y + 0.5, pen.measureText(text).width + 4, sizes.lane - 2.5);
  }
  pen.fillStyle = ink;
  pen.fillText(text, x + 4, y + sizes.lane / 2 + 3);
}

// The critical path: a line below the lanes of the rank that it is on, dashed where it is not explained.
function drawPath({ pen, paint, px, rowTop, step, sizes, lanes, width }) {
  const y = (piece) => rowTop(piece.row) + sizes.lane * lanes.length + 0.5;
  pen.strokeStyle = paint.path;
  pen.lineWidth = sizes.lane > 6 ? 2.5 : 1.5;
  let before = null;
  for (const piece of step.path) {
    const [x, end] = [px(piece.start), px(piece.end)];
    if (end >= sizes.left && x <= width) {
      pen.setLineDash(piece.kind === 2 ? [3, 3] : []);
      pen.beginPath();
      if (before !== null && x >= sizes.left) {
        pen.moveTo(x, y(before));
        pen.lineTo(x, y(piece));
      }
      pen.moveTo(Math.max(sizes.left, x), y(piece));
      pen.lineTo(Math.min(width, end), y(piece));
      pen.stroke();
    }
    before = piece;
  }
  pen.setLineDash([]);
  pen.lineWidth = 1;
}

function drawArea({ pen, paint, px, rowTop, sizes, lanes, area }) {
  if (!area) return;
  const [first, last] = area.places || [0, lanes.length - 1];
  const [x, y] = [Math.max(sizes.left, px(area.from)), rowTop(area.rows[0]) + first * sizes.lane];
  const height = rowTop(area.rows[1]) + (last + 1) * sizes.lane - y;
  pen.fillStyle = pen.strokeStyle = paint.focus;
  pen.globalAlpha = 0.12;
  pen.fillRect(x, y, px(area.to) - x, height);
  pen.globalAlpha = 1;
  pen.strokeRect(x, y, px(area.to) - x, height);
}

function label({ pen, paint, rowTop, step, sizes, lanes, verdictRanks }, row) {
  const { rank } = step.ranks[row];
  const marked = verdictRanks.includes(rank);
  if (sizes.row < 14 && row % Math.ceil(14 / sizes.row) && !marked) return;
  const y = rowTop(row) + Math.min(sizes.row, sizes.lane * lanes.length) / 2 + 5;
  if (y < sizes.top + 6) return;
  pen.fillStyle = marked ? paint.critical : paint.text;
  pen.textAlign = "right";
  pen.font = (marked ? "bold " : "") + "12px system-ui, sans-serif";
  pen.fillText((marked || row === 0 ? "rank " : "") + rank, sizes.left - 8, y);
}
