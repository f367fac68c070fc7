// Lines that can be zoomed: by dragging, by the wheel with Ctrl, or by the keyboard.
import { element, redraw, say, showTipsOf, svg } from "./dom.js";
import { frame, linearTicks, logBorders, logTicks } from "./axes.js";

// `spec`: { label, xLabel, yLabel, formatX, formatY, ticksX, ticksY, logY, close, steps, height, series: [{ name, kind, points: [[x, y, lines]], marks,
// line }], bands: [{ kind, points: [[x, low, high]] }] }.
export function lineChart(spec) {
  const xs = spec.series.flatMap((s) => s.points.map((p) => p[0]));
  let low = Infinity;
  let high = -Infinity;
  for (const x of xs) {
    low = Math.min(low, x);
    high = Math.max(high, x);
  }
  const whole = [low, high > low ? high : low + 1];
  const state = { view: whole.slice() };
  const holder = element("div", { class: "holder" });
  const reset = element("button", { type: "button", hidden: true, onclick: () => zoom(whole.slice()) }, "Whole range");
  const box = element("div", { class: "lines", tabindex: "0", role: "group", "aria-label": spec.label + ". Arrow keys move, plus and minus zoom, 0 shows all." }, holder);
  const again = redraw(holder, draw);

  function zoom([from, to]) {
    const width = Math.min(Math.max(to - from, (whole[1] - whole[0]) / 1e5), whole[1] - whole[0]);
    const start = Math.min(Math.max(from, whole[0]), whole[1] - width);
    state.view = [start, start + width];
    reset.hidden = width >= whole[1] - whole[0];
    again();
    say(["from " + spec.formatX(state.view[0]), "to " + spec.formatX(state.view[1])]);
  }

  box.addEventListener("keydown", (event) => {
    const [from, to] = state.view;
    const width = to - from;
    const moves = {
      ArrowLeft: [from - width / 5, to - width / 5], ArrowRight: [from + width / 5, to + width / 5],
      "+": [from + width / 4, to - width / 4], "=": [from + width / 4, to - width / 4], "-": [from - width / 2, to + width / 2], 0: whole,
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    zoom(moves[event.key].slice());
  });

  function visible(points) {
    const [from, to] = state.view;
    const first = points.findIndex((p) => p[0] >= from);
    if (first < 0) return points.slice(-1);
    let last = points.length;
    while (last > first + 1 && points[last - 1][0] > to) last--;
    return points.slice(Math.max(0, first - 1), last + 1);
  }

  // An axis that is `close` to its values shows changes that are small beside them; every other one begins at 0.
  function borders(known, top) {
    const least = known.reduce((a, b) => Math.min(a, b), spec.close ? Infinity : 0);
    const room = spec.close ? Math.max(0.1 * (top - least), 0.01 * top, 1) : 0;
    return spec.close ? [Math.max(0, least - room), top + room] : [Math.min(0, least), top > 0 ? top * 1.05 : 1];
  }

  function draw(width) {
    const height = spec.height || 260;
    const ys = [];
    for (const s of spec.series) for (const p of visible(s.points)) ys.push(p[1]);
    for (const b of spec.bands || []) for (const p of visible(b.points)) ys.push(p[2], ...(spec.close ? [p[1]] : []));
    const known = ys.filter((y) => y !== null && (!spec.logY || y > 0));
    const top = known.length ? known.reduce((a, b) => Math.max(a, b), -Infinity) : 1;
    const [from, to] = spec.logY ? logBorders(known, 10) : borders(known, top);
    const y = { from, to, log: spec.logY, format: spec.formatY, label: spec.yLabel,
      ticks: spec.logY ? logTicks(from, to, 6, 10) : (spec.ticksY || linearTicks)(from, to, 5) };
    const x = { from: state.view[0], to: state.view[1], format: spec.formatX, label: spec.xLabel,
      ticks: (spec.ticksX || linearTicks)(state.view[0], state.view[1], Math.max(2, Math.floor(width / 110))) };
    const { picture, px, py, margin } = frame(width, height, x, y, spec.label);
    const clip = "clip-" + (frames += 1);
    picture.append(svg("clipPath", { id: clip }, svg("rect", { x: margin.left - 4, y: 0, width: width - margin.left - margin.right + 8, height: height - margin.bottom + 2 })));
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    const floor = (v) => py(spec.logY ? Math.max(v, from) : v);
    for (const band of spec.bands || []) {
      const points = visible(band.points);
      const there = points.map((p) => `${px(p[0])},${floor(p[2])}`);
      const back = points.map((p) => `${px(p[0])},${floor(p[1])}`).reverse();
      inside.append(svg("polygon", { class: "band " + band.kind, points: there.concat(back).join(" ") }));
    }
    for (const s of spec.series) {
      const points = visible(s.points).filter((p) => p[1] !== null);
      const at = (t, v) => `${px(t).toFixed(1)},${floor(v).toFixed(1)}`;
      // Values that hold until the next point are drawn as steps.
      const path = points.map((p, i) => (spec.steps && i ? at(p[0], points[i - 1][1]) + " " : "") + at(p[0], p[1])).join(" ");
      if (s.line !== false) inside.append(svg("polyline", { class: "mark line " + s.kind, points: path }));
      if (s.marks) for (const p of points) inside.append(svg("circle", { class: "mark dot " + s.kind, cx: px(p[0]), cy: floor(p[1]), r: 2.5 }));
    }
    picture.append(inside);
    holder.replaceChildren(picture);
    interact(picture, px, floor, width, margin);
  }

  function nearest(event, px, floor) {
    const box = holder.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best = null;
    for (const s of spec.series) for (const p of visible(s.points)) {
      if (p[1] === null) continue;
      const distance = Math.abs(px(p[0]) - x) * 2 + Math.abs(floor(p[1]) - y);
      if (!best || distance < best.distance) best = { distance, p, s };
    }
    return best;
  }

  function interact(picture, px, floor, width, margin) {
    const value = (clientX) => {
      const share = (clientX - holder.getBoundingClientRect().left - margin.left) / (width - margin.left - margin.right);
      return state.view[0] + Math.min(1, Math.max(0, share)) * (state.view[1] - state.view[0]);
    };
    let start = null;
    const brush = svg("rect", { class: "brush", y: 0, height: (spec.height || 260) - margin.bottom, width: 0 });
    picture.append(brush);
    picture.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch") return;
      start = event.clientX;
      picture.setPointerCapture(event.pointerId);
    });
    picture.addEventListener("pointermove", (event) => {
      if (start !== null) {
        const left = holder.getBoundingClientRect().left;
        brush.setAttribute("x", Math.min(start, event.clientX) - left);
        brush.setAttribute("width", Math.abs(event.clientX - start));
      }
    });
    showTipsOf(picture, (event) => {
      const found = nearest(event, px, floor);
      return found && [found.s.name, ...found.p[2]()];
    });
    picture.addEventListener("pointerup", (event) => {
      const from = start;
      start = null;
      brush.setAttribute("width", 0);
      if (from !== null && Math.abs(event.clientX - from) > 6) {
        zoom([value(Math.min(from, event.clientX)), value(Math.max(from, event.clientX))]);
      }
    });
    picture.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const at = value(event.clientX);
      const factor = event.deltaY > 0 ? 1.25 : 0.8;
      zoom([at - (at - state.view[0]) * factor, at + (state.view[1] - at) * factor]);
    }, { passive: false });
    picture.addEventListener("dblclick", () => zoom(whole.slice()));
  }

  return element("div", {}, [element("div", { class: "controls" }, [element("span", { class: "hint keys" }, "Drag to zoom. Keyboard: + − ← → 0."), reset]), box]);
}

// Each clip path needs a unique id.
let frames = 0;
