// The map of lateness: one row per rank, one column per step. It uses canvas, because it may have tens of thousands of cells.
import { choice, colour, element, redraw, say, showTipsOf } from "./dom.js";
import { formatNs, shortenEnd, span } from "./format.js";

const MODES = [["own", "Own excess"], ["arrival", "Arrival"], ["suffered", "Suffered wait"]];

// Four colours from that of the page, which means 0, to the one that differs most from it, in both themes.
const STOPS = ["heat-0", "heat-1", "heat-2", "heat-3"];

function numbersOf(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// A function from a share of the largest value to its colour. The further a colour is from the page, the worse the value.
export function heatScale() {
  const stops = STOPS.map((name) => numbersOf(colour(name)));
  return (share) => {
    const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
    const i = Math.min(stops.length - 2, Math.floor(at));
    return `rgb(${stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (at - i))).join(",")})`;
  };
}

export function heatMap(heat, verdictRanks) {
  const columns = heat.columns.length;
  const rows = heat.rows.length;
  // What the verdict stands on comes first.
  const modes = heat.range_name === null ? MODES : [["range", "Longer " + shortenEnd(heat.range_name, 40)], ...MODES];
  const state = { mode: heat.range_name !== null ? "range" : heat.own.some((v) => v > 0) ? "own" : "arrival", row: 0, column: 0 };
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map" });
  const scaleBar = element("canvas", { class: "scale", width: 160, height: 12, "aria-hidden": "true" });
  const [low, high] = [element("span"), element("span")];
  const readout = element("p", { class: "readout" });
  const holder = element("div", { class: "holder" }, canvas);
  let cell = { width: 1, height: 1, left: 60, top: 4 };
  const again = redraw(holder, draw);

  function value(row, column) {
    const v = heat[state.mode][row * columns + column];
    return v === null ? null : v * heat.unit_ns;
  }

  // The value at the end of the scale. The few values far beyond it share its colour.
  function top() {
    const known = heat[state.mode].filter((v) => v !== null && v > 0).sort((a, b) => a - b);
    return known.length ? known[Math.floor((known.length - 1) * 0.995)] * heat.unit_ns : 1;
  }

  function draw(width) {
    const ratio = devicePixelRatio || 1;
    cell.left = 8 + 7.5 * Math.max(...heat.rows.map(([a, b]) => span(a, b).length), 6);
    cell.width = Math.max(1, (width - cell.left - 8) / columns);
    cell.height = Math.max(2, Math.min(24, Math.floor(560 / rows)));
    const height = cell.top + rows * cell.height + 34;
    canvas.width = Math.floor(width * ratio);
    canvas.height = Math.floor(height * ratio);
    canvas.style.setProperty("width", width + "px");
    canvas.style.setProperty("height", height + "px");
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const most = top();
    const [shade, none] = [heatScale(), colour("grid")];
    const gap = cell.width > 5 && cell.height > 5 ? 1 : 0;
    for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) {
      const v = value(row, column);
      const [x, y] = [cell.left + column * cell.width, cell.top + row * cell.height];
      pen.fillStyle = v === null ? none : shade(Math.max(0, v) / most);
      if (v === null && cell.width > 5 && cell.height > 5) pen.fillRect(x + cell.width / 2 - 2, y + cell.height / 2 - 1, 4, 2);
      else pen.fillRect(x, y, cell.width - gap, cell.height - gap);
    }
    pen.strokeStyle = colour("rule");
    pen.strokeRect(cell.left - 0.5, cell.top - 0.5, columns * cell.width + 1, rows * cell.height + 1);
    labels(pen, width);
    cursor(pen);
    const bar = scaleBar.getContext("2d");
    for (let x = 0; x < 160; x++) {
      bar.fillStyle = shade(x / 159);
      bar.fillRect(x, 0, 1, 12);
    }
    low.textContent = "0";
    high.textContent = formatNs(most) + (state.mode === "own" || state.mode === "range" ? " or more; 0 = no more than the others" : " or more");
    const name = modes.find(([mode]) => mode === state.mode)[1];
    canvas.setAttribute("aria-label", `${name} by rank and step; ${rows} rows, ${columns} columns. Arrow keys move from cell to cell.`);
    readout.textContent = "";
  }

  function labels(pen, width) {
    pen.fillStyle = colour("text");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    const every = Math.max(1, Math.ceil(15 / cell.height));
    heat.rows.forEach(([first, last], row) => {
      const marked = verdictRanks.some((rank) => first <= rank && rank <= last);
      if (row % every && !marked) return;
      pen.font = (marked ? "bold " : "") + "12px system-ui, sans-serif";
      pen.fillText((row === 0 && rows > 1 ? "rank " : "") + span(first, last), cell.left - 6, cell.top + (row + 0.5) * cell.height + 4);
    });
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "center";
    const stride = Math.max(1, Math.ceil(44 / cell.width));
    heat.columns.forEach(([first, last], column) => {
      if (column % stride === 0) pen.fillText(span(first, last), cell.left + (column + 0.5) * cell.width, cell.top + rows * cell.height + 14);
    });
    pen.fillText("step", cell.left + (columns * cell.width) / 2, cell.top + rows * cell.height + 30, width);
  }

  function cursor(pen) {
    if (document.activeElement !== canvas) return;
    pen.strokeStyle = colour("focus");
    pen.lineWidth = 2;
    pen.strokeRect(cell.left + state.column * cell.width, cell.top + state.row * cell.height, Math.max(3, cell.width), Math.max(3, cell.height));
  }

  function lines(row, column) {
    const all = modes.map(([mode, name]) => {
      const v = heat[mode][row * columns + column];
      return `${name.toLowerCase()}: ${v === null ? "unknown" : formatNs(v * heat.unit_ns)}`;
    });
    return [`rank ${span(...heat.rows[row])}, step ${span(...heat.columns[column])}`, ...all];
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - cell.left) / cell.width);
    const row = Math.floor((event.clientY - box.top - cell.top) / cell.height);
    return column >= 0 && column < columns && row >= 0 && row < rows ? [row, column] : null;
  }

  showTipsOf(canvas, (event) => {
    const at = place(event);
    return at && lines(...at);
  });
  canvas.addEventListener("focus", again);
  canvas.addEventListener("blur", again);
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    state.row = Math.min(rows - 1, Math.max(0, state.row + move[0]));
    state.column = Math.min(columns - 1, Math.max(0, state.column + move[1]));
    again();
    const text = lines(state.row, state.column);
    readout.textContent = text.join(" · ");
    say(text);
  });

  const error = heat.error_ns === null
    ? "Arrivals and waits compare clocks, whose error is not known everywhere. The other maps need no common clock."
    : heat.error_ns === 0 ? "All ranks share one clock, so arrivals and waits have no clock error."
    : `Arrivals and waits compare clocks, with an error of up to ${formatNs(heat.error_ns)} (95 %). The other maps need no common clock.`;
  return element("div", {}, [
    element("div", { class: "controls" }, [choice("Show", modes, state.mode, (mode) => { state.mode = mode; again(); }),
      element("span", { class: "scale-box" }, [low, scaleBar, high])]),
    holder, readout, element("p", { class: "hint" }, error),
  ]);
}
