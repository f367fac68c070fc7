// Marks along one axis, one row per rank or name; each mark is one step or one call. The tick of a row is its median.
import { drawing, element, redraw, showTipsOf, showTip, hideTip, svg } from "./dom.js";
import { linearTicks, scale } from "./axes.js";

const STRIP_ROW = 24;

// The lower median of numbers; null without numbers.
export function medianOf(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor((sorted.length - 1) / 2)] : null;
}

// `spec`: { label, xLabel, format, rows(): [{ label, brief, kind, points: [{ x, kind, lines() }], lines() }] }. Returns the box and a
// function that redraws it.
export function stripChart(spec) {
  const box = element("div", { class: "strip scroll", tabindex: "0", role: "group", "aria-label": spec.label });
  const again = redraw(box, (width) => drawStrip(box, width, spec));
  return { box, again };
}

function drawStrip(box, width, spec) {
  const rows = spec.rows();
  const letters = (key) => Math.max(...rows.map((row) => (row[key] || row.label).length), 4);
  const brief = letters("label") * 7.2 + 12 > width * 0.3;
  const left = Math.min(width * 0.45, letters(brief ? "brief" : "label") * 7.2 + 12);
  const right = 66;
  const values = rows.flatMap((row) => row.points.map((p) => p.x));
  const [low, high] = values.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [0, 0]);
  const room = 0.03 * (high - low || 1);
  const px = scale(low < 0 ? low - room : low, high + room, left + 6, width - right);
  const end = rows.length * STRIP_ROW;
  const picture = drawing(width, end + 40, { role: "list", "aria-label": spec.label });
  for (const tick of linearTicks(low, high + room, Math.max(2, Math.floor((width - left - right) / 90)))) {
    picture.append(svg("line", { class: tick === 0 ? "zero" : "grid", x1: px(tick), x2: px(tick), y1: 0, y2: end + 4 }));
    picture.append(svg("text", { class: "tick", x: px(tick), y: end + 18, "text-anchor": "middle" }, tick === 0 ? "0" : spec.format(tick)));
  }
  picture.append(svg("text", { class: "tick", x: (left + width - right) / 2, y: end + 34, "text-anchor": "middle" }, spec.xLabel));
  rows.forEach((row, r) => picture.append(stripRow(row, r * STRIP_ROW, { px, left, width, brief, format: spec.format })));
  box.replaceChildren(picture);
}

function stripRow(row, top, { px, left, width, brief, format }) {
  const middle = top + STRIP_ROW / 2;
  const group = svg("g", { class: "row " + (row.kind || ""), role: "listitem", tabindex: "0", "aria-label": row.lines().join(", ") });
  group.append(svg("rect", { class: "reach", x: 0, y: top, width, height: STRIP_ROW }));
  group.append(svg("text", { class: "label", x: left - 8, y: middle + 4, "text-anchor": "end" }, (brief && row.brief) || row.label));
  // Equal values lie side by side in three lines instead of over each other.
  const places = row.points.map((p, i) => ({ p, x: px(p.x), y: middle + ((i % 3) - 1) * 4 }));
  for (const { p, x, y } of places) group.append(svg("circle", { class: "mark dot " + p.kind, cx: x, cy: y, r: 3.2 }));
  const middleValue = medianOf(row.points.map((p) => p.x));
  if (middleValue !== null) {
    group.append(svg("line", { class: "median", x1: px(middleValue), x2: px(middleValue), y1: top + 2, y2: top + STRIP_ROW - 2 }));
    group.append(svg("text", { class: "total", x: width - 4, y: middle + 4, "text-anchor": "end" }, format(middleValue)));
  }
  showTipsOf(group, (event) => {
    const x = event.clientX - group.ownerSVGElement.getBoundingClientRect().left;
    const nearest = places.reduce((best, place) => (best === null || Math.abs(place.x - x) < Math.abs(best.x - x) ? place : best), null);
    return nearest && Math.abs(nearest.x - x) < 12 ? nearest.p.lines() : row.lines();
  });
  group.addEventListener("focus", () => {
    const at = group.getBoundingClientRect();
    showTip(row.lines(), at.left + left, at.top + STRIP_ROW / 2);
  });
  group.addEventListener("blur", hideTip);
  return group;
}
