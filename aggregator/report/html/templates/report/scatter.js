// Points between two logarithmic axes, and lines over them.
import { element, explain, redraw, svg } from "./dom.js";
import { frame, logBorders, logTicks } from "./axes.js";

// `spec`: { label, xLabel, yLabel, formatX, formatY, baseX, points(): [{ x, y, kind, r, lines() }], roofs: [{ points, name }],
// spans: [{ x, low, high, kind }] }.
export function scatter(spec) {
  const box = element("div", { class: "scatter" });
  const again = redraw(box, draw);

  function draw(width) {
    const height = Math.min(380, Math.max(260, width * 0.45));
    const points = spec.points().filter((p) => p.x > 0 && p.y > 0);
    const roofs = spec.roofs || [];
    const xs = points.map((p) => p.x).concat(roofs.flatMap((r) => r.knee ? [r.knee] : []));
    const ys = points.map((p) => p.y).concat(roofs.flatMap((r) => r.flat ? [r.flat] : []));
    const baseX = spec.baseX || 10;
    const [x0, x1] = logBorders(xs, baseX);
    const [y0, y1] = logBorders(ys, 10);
    const x = { from: x0, to: x1, log: true, ticks: logTicks(x0, x1, Math.max(3, Math.floor(width / 80)), baseX), format: spec.formatX, label: spec.xLabel };
    const y = { from: y0, to: y1, log: true, ticks: logTicks(y0, y1, 6, 10), format: spec.formatY, label: spec.yLabel };
    const { picture, px, py, margin } = frame(width, height, x, y, spec.label);
    for (const roof of roofs) {
      const line = roof.line(x0, x1).map(([a, b]) => `${px(a)},${Math.min(py(b), height - margin.bottom)}`);
      const mark = svg("polyline", { class: "mark roof", points: line.join(" ") });
      picture.append(explain(mark, () => [roof.name]));
    }
    for (const s of (spec.spans ? spec.spans() : [])) {
      if (s.low > 0 && s.high > 0) picture.append(svg("line", { class: "mark span " + s.kind, x1: px(s.x), x2: px(s.x), y1: py(s.low), y2: py(s.high) }));
    }
    for (const p of points) {
      const attributes = { class: "mark dot " + p.kind, "aria-label": p.lines().join(", "), tabindex: p.focus ? "0" : null, role: "img" };
      const mark = p.square
        ? svg("rect", { ...attributes, x: px(p.x) - p.r, y: py(p.y) - p.r, width: 2 * p.r, height: 2 * p.r })
        : svg("circle", { ...attributes, cx: px(p.x), cy: py(p.y), r: p.r });
      picture.append(explain(mark, p.lines));
    }
    box.replaceChildren(picture);
  }

  return { box, again };
}
