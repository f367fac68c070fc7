// Scales, their ticks, and the frame of a chart.
import { drawing, element, svg } from "./dom.js";

// Round steps: at most `most` ticks from `from` to `to`.
export function linearTicks(from, to, most) {
  const width = to - from;
  if (!(width > 0) || most < 1) return [from];
  const power = 10 ** Math.floor(Math.log10(width / most));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => width / s <= most) || 10 * power;
  const ticks = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

// Round steps of whole numbers.
export function wholeTicks(from, to, most) {
  return linearTicks(from, to, most).filter((tick) => Math.abs(tick - Math.round(tick)) < 1e-6);
}

// Round steps of a binary size.
export function sizeTicks(from, to, most) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(1, to)) / 10));
  return linearTicks(from / unit, to / unit, most).map((tick) => tick * unit);
}

// Powers of `base`, thinned to at most `most`.
export function logTicks(from, to, most, base) {
  const log = (v) => Math.log(v) / Math.log(base);
  const first = Math.ceil(log(from) - 1e-9);
  const last = Math.floor(log(to) + 1e-9);
  const stride = Math.max(1, Math.ceil((last - first + 1) / most));
  const ticks = [];
  for (let i = first; i <= last; i += stride) ticks.push(base ** i);
  return ticks;
}

// A function from values to pixels; `log` scales need values above 0.
export function scale(from, to, start, end, log) {
  const f = log ? Math.log : (v) => v;
  const a = f(from);
  const width = f(to) - a || 1;
  return (value) => start + ((f(value) - a) / width) * (end - start);
}

// The frame of a chart with its axes. `x` and `y`: { from, to, ticks, format, log, label }.
export function frame(width, height, x, y, label) {
  const longest = Math.max(3, ...y.ticks.map((tick) => y.format(tick).length));
  const margin = { left: 34 + 6.6 * longest, right: 16, top: 10, bottom: 40 };
  const px = scale(x.from, x.to, margin.left, width - margin.right, x.log);
  const py = scale(y.from, y.to, height - margin.bottom, margin.top, y.log);
  const axes = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const tick of y.ticks) {
    axes.append(svg("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: py(tick), y2: py(tick) }));
    axes.append(svg("text", { x: margin.left - 6, y: py(tick) + 4, "text-anchor": "end" }, y.format(tick)));
  }
  for (const tick of x.ticks) {
    axes.append(svg("line", { class: "grid", x1: px(tick), x2: px(tick), y1: margin.top, y2: height - margin.bottom }));
    const place = px(tick) > width - 40 ? "end" : "middle";
    axes.append(svg("text", { x: place === "end" ? width - 2 : px(tick), y: height - margin.bottom + 16, "text-anchor": place }, x.format(tick)));
  }
  axes.append(svg("text", { class: "title", x: (margin.left + width - margin.right) / 2, y: height - 6, "text-anchor": "middle" }, x.label));
  axes.append(svg("text", { class: "title", x: 0, y: 0, transform: `translate(12 ${(height - margin.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, y.label));
  const picture = drawing(width, height, { role: "group", "aria-label": label }, axes);
  return { picture, px, py, margin };
}

// The limits of a logarithmic axis: whole powers around all values.
export function logBorders(values, base) {
  const log = (v) => Math.log(v) / Math.log(base);
  const positive = values.filter((v) => v > 0);
  if (!positive.length) return [1, base];
  const low = Math.floor(log(Math.min(...positive)) + 1e-9);
  const high = Math.ceil(log(Math.max(...positive)) - 1e-9);
  return [base ** low, base ** (high > low ? high : low + 1)];
}

// The numbers behind a chart as a table, for screen readers and for copying.
export function numbers(title, columns, rows) {
  const head = element("tr", {}, columns.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map((row) => element("tr", {}, row.map((cell) => element("td", {}, String(cell)))));
  return element("details", { class: "numbers" }, [
    element("summary", {}, title),
    element("div", { class: "scroll", tabindex: "0" }, element("table", {}, [element("thead", {}, head), element("tbody", {}, body)])),
  ]);
}
