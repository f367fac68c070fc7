// Memory in use, and what held it at its peak.
import { groupBy } from "../../../templates/report/rows.js";
import { element, legend, select } from "../../../templates/report/dom.js";
import { NONE, formatBytes, formatCount, formatNs } from "../../../templates/report/format.js";
import { numbers, sizeTicks } from "../../../templates/report/axes.js";
import { lineChart } from "../../../templates/report/lines.js";
import { laneKey, laneName } from "../../../templates/report/ranks.js";

// Curves with a colour and an entry in the legend of their own.
const CURVE_KINDS = ["range-0", "range-1", "range-2", "range-3", "range-5", "compute", "overlap", "memory"];

// A curve of memory, whose last value holds until the end of the recording.
function curve(points, column, end) {
  const known = points.map((p) => [p.ts_ns, p[column], () => [formatBytes(p[column]), `at ${formatNs(p.ts_ns)}`]]);
  const last = points[points.length - 1];
  return last.ts_ns < end ? [...known, [end, last[column], () => [formatBytes(last[column]), "no allocation is recorded from here to the end"]]] : known;
}

function memoryChart(data) {
  const curves = groupBy(data.memory_curve, laneKey);
  const name = ([first]) => laneName(first);
  const state = { shown: "all" };
  const place = element("div");
  const show = () => {
    const chosen = curves.filter((c, i) => state.shown === "all" || String(i) === state.shown);
    const ordinary = chosen.filter((c) => !data.causes.includes(c[0].rank));
    const few = ordinary.length <= CURVE_KINDS.length;
    const kindOf = (c) => (data.causes.includes(c[0].rank) ? "culprit" : few ? CURVE_KINDS[ordinary.indexOf(c)] : "faint");
    const series = chosen.flatMap((c) => {
      const used = { name: `${name(c)}: in use`, kind: kindOf(c), points: curve(c, "in_use_bytes", data.memory_end_ns), marks: c.length < 20 };
      const reserved = chosen.length === 1 && c.some((p) => p.reserved_bytes !== null)
        ? [{ name: `${name(c)}: held by the allocator`, kind: "idle", points: curve(c, "reserved_bytes", data.memory_end_ns) }] : [];
      return [used, ...reserved];
    });
    const entries = [...chosen.filter((c) => kindOf(c) !== "faint").map((c) => [kindOf(c), name(c) + (kindOf(c) === "culprit" ? ", the slow rank" : "")]),
      ...(few ? [] : [["faint", `${formatCount(ordinary.length)} ranks`]]), ...(series.length > chosen.length ? [["idle", "held by the allocator"]] : [])];
    place.replaceChildren(legend(entries), lineChart({ label: "Memory in use", xLabel: "time", yLabel: "bytes", formatX: formatNs, formatY: formatBytes, ticksY: sizeTicks, steps: true, series }));
  };
  show();
  return [element("div", { class: "controls" }, select("Show", [["all", "all"], ...curves.map((c, i) => [String(i), name(c)])], "all", (shown) => { state.shown = shown; show(); })), place];
}

export function drawMemory(data) {
  const holders = (text) => text.split("; ").filter(Boolean).map((part) => {
    const cut = part.lastIndexOf("=");
    return cut < 0 ? part : `${part.slice(0, cut)} ${formatBytes(Number(part.slice(cut + 1)))}`;
  }).join(", ");
  return [
    ...memoryChart(data), numbers("Highest peaks, and what was alive", ["", "peak", "parameters", "gradients", "optimizer state", "activations", "temporary", "unknown", "held, not in use", "largest holders"],
      data.memory_peaks.map((p) => [laneName(p), ...["peak", "parameters", "gradients", "optimizer_state", "activations", "temporary", "unknown"].map((part) => formatBytes(p[part + "_bytes"])),
        p.fragmentation_bytes === null ? NONE : formatBytes(p.fragmentation_bytes), holders(p.alive) || NONE])),
    numbers("Largest blocks at the highest peak", ["", "size", "blocks", "category", "operator", "stack, innermost last"],
      data.memory_at_peak.map((b) => [laneName(b), formatBytes(b.bytes), b.blocks === null ? NONE : b.blocks, b.category.replace("_", " "), b.operator || NONE, b.stack || NONE])),
  ];
}
