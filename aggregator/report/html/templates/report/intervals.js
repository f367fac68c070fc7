// Changes with their intervals, one per row, around zero.
import { drawing, element, explain, redraw, svg } from "./dom.js";
import { linearTicks, scale } from "./axes.js";
import { shorten } from "./format.js";

const HEIGHT = 24;

// `spec`: { label, format, rows(): [{ label, value, low, high, kind, certain, lines() }] }. Returns the box and a function that redraws
// it. Intervals are cut at the borders of the chart.
export function intervalChart(spec) {
  const box = element("div", { class: "intervals scroll", tabindex: "0", role: "group", "aria-label": spec.label });
  const again = redraw(box, (width) => drawIntervals(box, width, spec));
  return { box, again };
}

// The limits of the axis: they include every value, zero, and intervals that are not much wider than the values. If all values are
// similar, they include half of the intervals.
function borders(rows) {
  const values = rows.flatMap((row) => [row.value, 0]);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const widths = rows.map((row) => row.high - row.low).sort((a, b) => a - b);
  const room = Math.max(most - least, (widths[Math.floor(widths.length / 2)] || 0) / 2, 1);
  const low = Math.max(Math.min(...rows.map((row) => row.low), least), least - room);
  const high = Math.min(Math.max(...rows.map((row) => row.high), most), most + room);
  return [low - 0.03 * (high - low), high + 0.03 * (high - low)];
}

function drawIntervals(box, width, spec) {
  const rows = spec.rows();
  // On a narrow page, the label of a row is above its mark.
  const above = width < 620;
  const left = above ? 10 : Math.min(0.42 * width, 420);
  const row = above ? HEIGHT + 16 : HEIGHT;
  const [low, high] = borders(rows);
  const px = scale(low, high, left, width - 14);
  const end = rows.length * row;
  const picture = drawing(width, end + 26, { role: "list", "aria-label": spec.label });
  for (const tick of linearTicks(low, high, Math.max(2, Math.floor((width - left) / 95)))) {
    picture.append(svg("line", { class: tick === 0 ? "zero" : "grid", x1: px(tick), x2: px(tick), y1: 0, y2: end + 4 }));
    const place = px(tick) > width - 40 ? "end" : px(tick) < 40 ? "start" : "middle";
    picture.append(svg("text", { class: "tick", x: px(tick), y: end + 18, "text-anchor": place }, spec.format(tick)));
  }
  picture.append(svg("line", { class: "zero", x1: px(0), x2: px(0), y1: 0, y2: end + 4 }));
  rows.forEach((one, r) => {
    const y = r * row + (above ? 16 : 0) + HEIGHT / 2;
    const letters = Math.floor((above ? width - 20 : left - 14) / 6.6);
    const label = svg("text", above ? { class: "label", x: px(0) < 60 ? px(0) + 8 : left, y: y - 9 } : { class: "label", x: left - 10, y: y + 4, "text-anchor": "end" }, shorten(one.label, letters));
    const bar = svg("line", { class: "mark span " + one.kind, x1: px(Math.max(one.low, low)), x2: px(Math.min(one.high, high)), y1: y, y2: y });
    const dot = svg("circle", { class: "mark point " + one.kind + (one.certain ? "" : " open"), cx: px(one.value), cy: y, r: 5 });
    const reach = svg("rect", { class: "reach", x: 0, y: r * row, width, height: row });
    const group = svg("g", { class: "row", role: "listitem", tabindex: "0", "aria-label": one.lines().join(", ") }, [reach, label, bar, dot]);
    picture.append(explain(group, one.lines));
  });
  box.replaceChildren(picture);
}
