// Devices: idle gaps, memory, and the roofline.
import { groupBy } from "./rows.js";
import { element, legend, select } from "./dom.js";
import { NONE, formatBytes, formatCount, formatFlops, formatNs, formatNumber, formatPercent } from "./format.js";
import { numbers, sizeTicks } from "./axes.js";
import { stackedBars } from "./bars.js";
import { lineChart } from "./lines.js";
import { scatter } from "./scatter.js";
import { briefName, laneKey, laneName } from "./steps.js";

// Kind, name and category.
const GAPS = [["host", "host: launched too late", "host_wait"], ["kernel", "kernel: below 30 µs", "kernel_wait"], ["other", "other", "other"]];
// Curves with a colour and an entry in the legend of their own.
const CURVE_KINDS = ["range-0", "range-1", "range-2", "range-3", "range-5", "compute", "overlap", "memory"];

export function drawIdle(data) {
  const lanes = groupBy(data.idle_breakdown, laneKey).map((rows) => {
    const of = (category, column) => rows.filter((r) => r.category === category).reduce((all, r) => all + r[column], 0);
    const by = (column) => GAPS.map(([, , category]) => of(category, column));
    return { ...rows[0], gaps: by("gaps"), idle: by("idle_ns"), share: by("share_pct") };
  });
  const { box } = stackedBars({
    label: "Idle gaps by rank and cause", kinds: GAPS, format: formatPercent,
    rows: () => lanes.map((r) => ({ label: laneName(r), brief: briefName(r), values: r.share, marked: data.causes.includes(r.rank),
      lines: (i) => [laneName(r) + `, stream ${r.stream_id === null ? NONE : r.stream_id}`, ...GAPS.map(([, text], k) => (i < 0 || i === k ? `${text}: ${formatPercent(r.share[k])}, ${formatNs(r.idle[k])} in ${formatCount(r.gaps[k])} gaps` : null)).filter(Boolean)] })),
  });
  return [legend(GAPS), box, numbers("The numbers behind this picture", ["", "stream", ...GAPS.map(([kind]) => kind)],
    lanes.map((r) => [laneName(r), r.stream_id === null ? NONE : r.stream_id, ...r.share.map((v, k) => `${formatPercent(v)}: ${formatNs(r.idle[k])} in ${formatCount(r.gaps[k])} gaps`)]))];
}

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

export function drawRoofline(data) {
  const of = data.roofline_of;
  const points = (of === "kernel" ? data.kernel_stats : data.op_stats).filter((r) => r.flops > 0 && r.bytes > 0 && r.flops_ns > 0)
    .map((r) => ({ ...r, intensity: r.flops / r.bytes, rate: (r.flops / r.flops_ns) * 1e9 }));
  const largest = Math.max(...points.map((p) => p.total_ns));
  const roofs = data.devices.map((d) => {
    const [flat, slope] = [d.peak_flops, d.peak_bytes_per_s];
    const knee = flat && slope ? flat / slope : null;
    const at = (x) => Math.min(flat || Infinity, slope ? slope * x : Infinity);
    return { flat, knee, name: `${d.name}: ${flat ? formatFlops(flat) : "arithmetic limit unknown"}, ${slope ? formatBytes(slope) + "/s" : "memory limit unknown"}`,
      line: (x0, x1) => [x0, ...(knee && knee > x0 && knee < x1 ? [knee] : []), x1].map((x) => [x, at(x)]) };
  });
  const { box } = scatter({
    label: "Roofline", xLabel: "arithmetic intensity, FLOPs by byte", yLabel: "FLOP/s", formatX: formatNumber, formatY: formatFlops, baseX: 10, roofs,
    points: () => points.map((p) => ({ x: p.intensity, y: p.rate, kind: "compute", r: 3 + 7 * Math.sqrt(p.total_ns / largest), focus: points.length < 100,
      lines: () => [p.name, `${formatFlops(p.rate)} at ${formatNumber(p.intensity)} FLOPs per byte${p.bound ? ` or less: ${p.bound}` : ""}`, `${formatNs(p.total_ns)} in total`] })),
  });
  return [element("p", { class: "hint" }, `Each point is one ${of}, summed over calls and ranks. Its area grows with its time.`), box,
    numbers("The numbers behind this picture", [of, "FLOPs by byte", "FLOP/s", "time"], points.map((p) => [p.name, formatNumber(p.intensity), formatFlops(p.rate), formatNs(p.total_ns)]))];
}
