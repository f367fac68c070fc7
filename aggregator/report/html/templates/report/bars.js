// Stacked bars, one per row, with a label on the left; sortable, with tooltips.
import { drawing, element, explain, redraw, svg } from "./dom.js";
import { linearTicks, scale } from "./axes.js";
import { shortenEnd } from "./format.js";

// `spec`: { label, kinds: [[class, name]], rows(): [{ label, brief, marked, values, texts: { i: text in part i }, lines(i) }], format, total(row) }. Returns the
// box and a function that redraws it.
export function stackedBars(spec) {
  const box = element("div", { class: "bars scroll", tabindex: "0", role: "group", "aria-label": spec.label });
  const again = redraw(box, (width) => draw(box, width, spec));
  return { box, again };
}

function draw(box, width, spec) {
  const rows = spec.rows();
  const height = rows.length > 160 ? 9 : rows.length > 48 ? 14 : 22;
  const letters = (key) => Math.max(...rows.map((row) => (row[key] || row.label).length), 4);
  const brief = letters("label") * 7.2 + 12 > width * 0.3;
  const left = Math.min(width * 0.45, letters(brief ? "brief" : "label") * 7.2 + 12);
  const right = 62;
  const sums = rows.map((row) => row.values.reduce((a, b) => a + b, 0));
  const most = Math.max(...sums, 1e-9);
  const px = scale(0, most, left, width - right);
  const picture = drawing(width, rows.length * height + 26, { role: "list", "aria-label": spec.label });
  for (const tick of linearTicks(0, most, Math.max(2, Math.floor((width - left - right) / 90)))) {
    picture.append(svg("line", { class: "grid", x1: px(tick), x2: px(tick), y1: 0, y2: rows.length * height + 4 }));
    picture.append(svg("text", { class: "tick", x: px(tick), y: rows.length * height + 18, "text-anchor": "middle" }, spec.format(tick)));
  }
  rows.forEach((row, r) => {
    const y = r * height;
    const group = svg("g", { role: "listitem", tabindex: rows.length > 160 ? null : "0", class: "row" + (row.marked ? " marked" : ""), "aria-label": row.lines(-1).join(", ") });
    if (height >= 14 || r % 4 === 0) {
      group.append(svg("text", { class: "label", x: left - 8, y: y + height / 2 + 4, "text-anchor": "end" }, (brief && row.brief) || row.label));
    }
    let from = 0;
    row.values.forEach((value, i) => {
      if (value <= 0) return;
      const [x, end] = [px(from), px(from + value)];
      from += value;
      const bar = svg("rect", { class: "mark " + spec.kinds[i][0], x, y: y + 1.5, width: Math.max(0.5, end - x), height: height - 3 });
      group.append(explain(bar, () => row.lines(i)));
      const text = row.texts && row.texts[i];
      if (text && height >= 22 && end - x > 60) group.append(svg("text", { class: "in-bar", x: x + 4, y: y + height / 2 + 4 }, shortenEnd(text, Math.floor((end - x - 6) / 6.6))));
    });
    group.append(svg("text", { class: "total", x: px(sums[r]) + 5, y: y + height / 2 + 4 }, height >= 14 ? spec.format(sums[r]) : ""));
    picture.append(explainRow(group, row));
  });
  box.replaceChildren(picture);
}

// The keyboard focus shows the same lines as the pointer.
function explainRow(group, row) {
  group.addEventListener("focus", () => group.firstChild && group.lastChild && group.classList.add("focused"));
  group.addEventListener("blur", () => group.classList.remove("focused"));
  group.append(svg("title", {}, row.lines(-1).join("\n")));
  return group;
}
