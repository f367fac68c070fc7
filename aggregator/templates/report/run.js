// Draws the charts of a run.
import { groupBy, rowsOf } from "./rows.js";
import { choice, element, legend, select } from "./dom.js";
import { NONE, formatBytes, formatCount, formatFlops, formatGbs, formatNs, formatNumber, formatPercent } from "./format.js";
import { numbers, sizeTicks, wholeTicks } from "./axes.js";
import { stackedBars } from "./bars.js";
import { lineChart } from "./lines.js";
import { scatter } from "./scatter.js";
import { heatMap } from "./heat.js";
import { timelineOf } from "./timeline.js";
import { moduleTree } from "./modules.js";
import { bucketWaterfall } from "./buckets.js";
import { clockTable, collectiveTable, extraTable, nameTable, stragglerTable } from "./tables.js";

// Kind, name and column.
const PARTS = [["compute", "compute", "compute_ns"], ["overlap", "communication under compute", "overlap_ns"], ["wait", "waits for other ranks", "waiting_ns"], ["transfer", "exposed transfer", "transfer_ns"],
  ["whole", "exposed communication, waiting not separated", "undivided_ns"], ["memory", "copies and fills", "memory_ns"], ["idle", "idle", "idle_ns"]];
const EXPOSED = [2, 3, 4];
// Kind, name and category.
const GAPS = [["host", "host: launched too late", "host_wait"], ["kernel", "kernel: below 30 µs", "kernel_wait"], ["other", "other", "other"]];
const sum = (values) => values.reduce((a, b) => a + b, 0);
const laneKey = (row) => `${row.rank} ${row.device_id}`;
const meanParts = (rows) => PARTS.map(([, , column]) => Math.floor(sum(rows.map((r) => r[column])) / rows.length));

function laneName({ rank, device_id: device }) {
  return device === null ? `rank ${rank}` : `rank ${rank} · gpu ${device}`;
}

// The short form of a lane's name.
function briefName({ rank, device_id: device }) {
  return device === null ? String(rank) : `${rank}·gpu ${device}`;
}

// Splits exposed communication into waiting and transfer, where waits are known.
function split(row) {
  const [all, waiting] = [row.exposed_comm_ns, row.exposed_wait_ns];
  const known = waiting !== null || all === 0;
  return { ...row, waiting_ns: known ? waiting || 0 : 0, transfer_ns: known ? all - (waiting || 0) : 0, undivided_ns: known ? 0 : all };
}

// Lanes and steps with their means. Beyond the limit of the page, a lane has one row without a step, and a step has one of rank −1.
function breakdownOf(data) {
  const means = (rows) => ({ ...rows[0], rows, mean: meanParts(rows) });
  const breakdown = data.step_breakdown.map(split);
  return {
    lanes: groupBy(breakdown.filter((r) => r.rank >= 0), laneKey).map(means),
    steps: groupBy(breakdown.filter((r) => r.step !== null), (r) => r.step).map(means).sort((a, b) => a.step - b.step),
  };
}

function drawSteps(data) {
  const { lanes, steps } = breakdownOf(data);
  const whole = lanes.some((lane) => lane.step !== null);
  const straggler = new Map(data.stragglers.map((s) => [s.rank, s]));
  const state = { sort: "rank", step: "mean" };
  const rowsOfLane = (lane) => (state.step === "mean" ? lane.rows : lane.rows.filter((r) => r.step === Number(state.step)));
  const lines = (lane, v) => (i) => {
    const total = sum(v) || 1;
    const s = straggler.get(lane.rank);
    const parts = i < 0 ? PARTS.map((_, k) => k).filter((k) => v[k] > 0) : [i];
    return [
      laneName(lane) + (s && s.verdict !== "ok" ? ` (${s.verdict})` : ""),
      ...parts.map((k) => `${PARTS[k][1]}: ${formatNs(v[k])}, ${formatPercent((100 * v[k]) / total)}`),
      `step: ${formatNs(sum(v))}` + (state.step === "mean" ? `, mean of ${whole ? lane.rows.length : "all steps"}` : ""),
      s && s.evidence_excess_ns !== null ? `longer ${s.evidence_range === null ? "outside of all ranges" : "in " + s.evidence_range}: ${formatNs(s.evidence_excess_ns)} per step` : null,
      s ? `own excess: ${formatNs(s.own_excess_ns)} per step` : null,
    ].filter((line) => line !== null);
  };
  const keys = {
    rank: () => 0, step: (r) => -sum(r.values), compute: (r) => -(r.values[0] + r.values[1]), exposed: (r) => -sum(EXPOSED.map((k) => r.values[k])), idle: (r) => -r.values[6],
    verdict: (r) => data.stragglers.indexOf(straggler.get(r.rank)),
  };
  const { box, again } = stackedBars({
    label: "Step time by rank", kinds: PARTS, format: formatNs,
    rows: () => lanes.filter((lane) => rowsOfLane(lane).length).map((lane) => ({ ...lane, values: meanParts(rowsOfLane(lane)) }))
      .sort((x, y) => keys[state.sort](x) - keys[state.sort](y))
      .map((r) => ({ label: laneName(r), brief: briefName(r), marked: data.causes.includes(r.rank), values: r.values, lines: lines(r, r.values) })),
  });
  const sorts = [["rank", "Rank"], ["step", "Step"], ["compute", "Compute"], ["exposed", "Exposed"], ["idle", "Idle"], ["verdict", "Verdict"]];
  const used = PARTS.filter((_, k) => lanes.some((lane) => lane.mean[k] > 0));
  return [
    element("div", { class: "controls" }, [
      choice("Sort by", sorts, "rank", (sort) => { state.sort = sort; again(); }),
      whole ? select("Step", [["mean", "mean of all"], ...steps.map((s) => [s.step, String(s.step)])], "mean", (step) => { state.step = step; again(); }) : null,
    ]),
    legend(used), box,
    data.stragglers.length > 1 ? element("h3", {}, "Who waited for whom, per step") : null,
    data.stragglers.length > 1 ? stragglerTable(data.stragglers) : null,
  ];
}

function drawOverlap(data) {
  const { lanes, steps } = breakdownOf(data);
  const communication = (mean) => [mean[1], sum(EXPOSED.map((k) => mean[k]))];
  const overlap = ([hidden, exposed]) => formatPercent(hidden + exposed > 0 ? (100 * hidden) / (hidden + exposed) : null);
  const kinds = [PARTS[1], ["exposed", "exposed communication"]];
  const { box } = stackedBars({
    label: "Communication by rank: hidden and exposed", kinds, format: formatNs,
    rows: () => lanes.map((lane) => {
      const v = communication(lane.mean);
      return { label: laneName(lane), brief: briefName(lane), marked: data.causes.includes(lane.rank), values: v,
        lines: () => [laneName(lane), `hidden ${formatNs(v[0])}, exposed ${formatNs(v[1])} per step`, `overlap ${overlap(v)}`] };
    }),
  });
  const parts = [legend(kinds), box];
  if (steps.length > 1) {
    const points = (k) => steps.map(({ step, mean }) => [step, communication(mean)[k], () => [`step ${step}`, formatNs(communication(mean)[k]) + ", mean over ranks"]]);
    parts.push(element("h3", {}, "By step, mean over ranks"), lineChart({
      label: "Hidden and exposed communication by step", xLabel: "step", yLabel: "time a step", formatX: (v) => String(Math.round(v * 100) / 100), formatY: formatNs, ticksX: wholeTicks, height: 220,
      series: [{ name: "hidden", kind: "overlap", points: points(0), marks: steps.length < 200 }, { name: "exposed", kind: "exposed", points: points(1), marks: steps.length < 200 }],
    }));
  }
  parts.push(numbers("The numbers behind these pictures", ["lane", "hidden", "exposed", "overlap"],
    lanes.map((lane) => [laneName(lane), ...communication(lane.mean).map(formatNs), overlap(communication(lane.mean))])));
  return parts;
}

function drawCollectives(data) {
  const rows = data.collective_instances;
  const parts = [];
  const state = { rate: "both" };
  const hasRate = (key) => rows.some((r) => r.bytes > 0 && r[key] > 0);
  if (hasRate("busbw_gbs") || hasRate("busbw_incl_wait_gbs")) {
    const kinds = [["busbw_gbs", "bus bandwidth", "transfer"], ["algbw_gbs", "algorithm bandwidth", "compute"], ["busbw_incl_wait_gbs", "bus bandwidth with waits", "wait"]];
    const shown = () => kinds.filter(([key]) => (state.rate === "both" ? key !== "algbw_gbs" : key === state.rate));
    const { box, again } = scatter({
      label: "Bandwidth by size", xLabel: "bytes of the whole array", yLabel: "bandwidth", baseX: 4, formatX: formatBytes, formatY: formatGbs,
      points: () => shown().flatMap(([key, name, kind]) => rows.map((r) => ({
        x: r.bytes, y: r[key], kind, r: 3, square: kind === "wait",
        lines: () => [`${r.op}, ${formatBytes(r.bytes)}`, `${name}: ${formatGbs(r[key])}`, `transfer ${formatNs(r.transfer_ns)}, skew ${formatNs(r.skew_ns)}, last rank ${r.last_rank}`,
          r.step === null ? null : `step ${r.step}`],
      }))),
      spans: () => (state.rate === "algbw_gbs" ? [] : data.collective_groups.map((g) => ({ x: g.bytes, low: g.busbw_p10, high: g.busbw_p90, kind: "transfer" }))),
    });
    const colours = element("div");
    const explainColours = () => colours.replaceChildren(legend(shown().map(([, name, kind]) => [kind + (kind === "wait" ? "" : " round"), name])));
    explainColours();
    parts.push(element("div", { class: "controls" }, choice("Show", [["both", "Bus, with and without waits"], ["busbw_gbs", "Bus"], ["busbw_incl_wait_gbs", "Bus with waits"], ["algbw_gbs", "Algorithm"]], "both", (rate) => { state.rate = rate; again(); explainColours(); })), colours, box);
  }
  parts.push(collectiveTable(data.collective_groups, data.names));
  const matched = Object.entries(data.matched).map(([way, n]) => `${formatCount(n)} by ${way}`).join(", ");
  parts.push(element("p", { class: "hint" }, `Matched across ranks: ${matched || NONE}.`));
  return parts;
}

function drawSkew(data) {
  const rows = data.collective_instances;
  const points = rows.map((r) => [r.first_start_ns, r.skew_ns, () => [
    `${r.op} ${formatBytes(r.bytes)}` + (r.step === null ? "" : `, step ${r.step}`), `skew ${formatNs(r.skew_ns)}` + (r.complete ? "" : " or more: ranks are missing"),
    `clock error ${r.error_ns === null ? "unknown" : formatNs(r.error_ns)}`, `last: rank ${r.last_rank}`, r.clocks_disagree ? "waits by durations alone differ" : null]]);
  const known = rows.filter((r) => r.error_ns !== null);
  const band = (low) => known.map((r) => [r.first_start_ns, low, r.error_ns]);
  const inside = known.filter((r) => r.skew_ns <= r.error_ns).length;
  const last = groupBy(rows, (r) => r.last_rank).sort((a, b) => b.length - a.length);
  const most = last.slice(0, 3).map((of) => `rank ${of[0].last_rank} in ${formatCount(of.length)}`).join(", ");
  const place = element("div");
  const show = (logY) => place.replaceChildren(lineChart({ label: "Arrival skew over time", xLabel: "time", yLabel: "last arrival − first", formatX: formatNs, formatY: formatNs, logY,
    series: [{ name: "skew", kind: "transfer", points, marks: true, line: false }], bands: [{ kind: "error", points: band(logY ? 1 : 0) }] }));
  const log = Math.max(...rows.map((r) => r.skew_ns), 1) > 30 * Math.max(1, ...rows.map((r) => r.error_ns || 0));
  show(log);
  return [
    element("div", { class: "controls" }, choice("Scale", [["log", "Logarithmic"], ["linear", "Linear"]], log ? "log" : "linear", (scale) => show(scale === "log"))),
    legend([["transfer round", "skew of a collective"], ["error", "clock error (95 %)"]]), place,
    element("p", { class: "hint" }, `${formatCount(inside)} of ${formatCount(rows.length)} are within the clock error. Most frequent last ranks: ${most || NONE}.`),
  ];
}

function drawClocks(data) {
  const rows = data.clock_fit;
  const state = { value: "error_ns" };
  const kinds = [["error_ns", "Error"], ["bound_ns", "Bound"], ["residual_p95_ns", "Residuals"], ["offset_ns", "Correction"]].filter(([key]) => rows.some((r) => r[key]));
  const parts = [];
  if (kinds.length) {
    state.value = kinds[0][0];
    const { box, again } = stackedBars({
      label: "Clock fits by rank", kinds: [["compute", "value"]], format: formatNs,
      rows: () => rows.filter((r) => r[state.value] !== null).map((r) => ({
        label: `rank ${r.rank}` + (r.clock === "device" ? " gpu" : ""), values: [Math.abs(r[state.value])],
        lines: () => [`rank ${r.rank}, ${r.clock} clock by ${r.method}`, `correction ${formatNs(r.offset_ns)}, added to its clock`, `drift of the correction ${r.drift_ppb === null ? "not measured" : (r.drift_ppb / 1000).toFixed(3) + " ppm"}`,
          `error ${r.error_ns === null ? "unknown" : formatNs(r.error_ns)}, bound ${r.bound_ns === null ? "none" : formatNs(r.bound_ns)}`],
      })),
    });
    parts.push(element("div", { class: "controls" }, choice("Show", kinds, state.value, (value) => { state.value = value; again(); })), box);
  }
  parts.push(clockTable(rows));
  return parts;
}

function drawIdle(data) {
  const streams = groupBy(data.idle_breakdown, (r) => `${laneKey(r)} ${r.stream_id}`).map((rows) => {
    const by = (column) => GAPS.map(([, , category]) => sum(rows.filter((r) => r.category === category).map((r) => r[column])));
    return { ...rows[0], gaps: by("gaps"), idle: by("idle_ns") };
  });
  const { box } = stackedBars({
    label: "Idle gaps by stream and cause", kinds: GAPS, format: formatNs,
    rows: () => streams.map((r) => {
      const name = laneName(r) + (r.stream_id === null ? "" : ` · stream ${r.stream_id}`);
      const brief = briefName(r) + (r.stream_id === null ? "" : `·${r.stream_id}`);
      return { label: name, brief, values: r.idle, marked: data.causes.includes(r.rank),
        lines: (i) => [name, ...GAPS.map(([, text], k) => (i < 0 || i === k ? `${text}: ${formatNs(r.idle[k])} in ${formatCount(r.gaps[k])} gaps` : null)).filter(Boolean)] };
    }),
  });
  return [legend(GAPS), box, numbers("The numbers behind this picture", ["rank", "device", "stream", ...GAPS.map(([kind]) => kind)],
    streams.map((r) => [r.rank, r.device_id === null ? NONE : r.device_id, r.stream_id === null ? "all" : r.stream_id, ...r.idle.map((v, k) => `${formatNs(v)} in ${r.gaps[k]}`)]))];
}

function drawMemory(data) {
  const curves = groupBy(data.memory_curve, laneKey);
  const name = ([first]) => laneName(first);
  const state = { shown: "all" };
  const place = element("div");
  const show = () => {
    const chosen = curves.filter((c, i) => state.shown === "all" || String(i) === state.shown);
    const series = chosen.flatMap((c, i) => {
      const points = (column) => c.map((p) => [p.ts_ns, p[column], () => [formatBytes(p[column]), `at ${formatNs(p.ts_ns)}`]]);
      const kind = data.causes.includes(c[0].rank) ? "exposed" : chosen.length > 8 ? "faint" : "range-" + (i % 6);
      const used = { name: `${name(c)}: in use`, kind, points: points("in_use_bytes"), marks: c.length < 20 };
      const reserved = chosen.length === 1 && c.some((p) => p.reserved_bytes !== null)
        ? [{ name: `${name(c)}: held by the allocator`, kind: "idle", points: points("reserved_bytes") }] : [];
      return [used, ...reserved];
    });
    place.replaceChildren(lineChart({ label: "Memory in use", xLabel: "time", yLabel: "bytes", formatX: formatNs, formatY: formatBytes, ticksY: sizeTicks, steps: true, series }));
  };
  show();
  const holders = (text) => text.split("; ").filter(Boolean).map((part) => {
    const cut = part.lastIndexOf("=");
    return cut < 0 ? part : `${part.slice(0, cut)} ${formatBytes(Number(part.slice(cut + 1)))}`;
  }).join(", ");
  return [
    element("div", { class: "controls" }, select("Show", [["all", "all"], ...curves.map((c, i) => [String(i), name(c)])], "all", (shown) => { state.shown = shown; show(); })),
    place, numbers("Highest peaks, and what was alive", ["", "peak", "parameters", "gradients", "optimizer state", "activations", "temporary", "unknown", "held, not in use", "largest holders"],
      data.memory_peaks.map((p) => [laneName(p), ...["peak", "parameters", "gradients", "optimizer_state", "activations", "temporary", "unknown"].map((part) => formatBytes(p[part + "_bytes"])),
        p.fragmentation_bytes === null ? NONE : formatBytes(p.fragmentation_bytes), holders(p.alive) || NONE])),
    numbers("Largest blocks at the highest peak", ["", "size", "blocks", "category", "operator", "stack, innermost last"],
      data.memory_at_peak.map((b) => [laneName(b), formatBytes(b.bytes), b.blocks === null ? NONE : b.blocks, b.category.replace("_", " "), b.operator || NONE, b.stack || NONE])),
  ];
}

function drawRoofline(data) {
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

// Draws the charts of a run into its page.
export function drawRun(page, root) {
  const tables = Object.entries(page.tables).map(([name, columns]) => [name, rowsOf(columns, page.names)]);
  const data = { ...page, ...Object.fromEntries(tables) };
  const ranks = data.verdict === "cause" ? data.causes : [];
  const draw = {
    steps: () => drawSteps(data), lateness: () => [heatMap(data.heat, ranks)], timeline: () => [timelineOf(data.timeline, data.names, data.stragglers.filter((s) => ranks.includes(s.rank)))],
    overlap: () => drawOverlap(data), buckets: () => [bucketWaterfall(data.bucket_timing, data.bucket_unit_ns, ranks[0])], collectives: () => drawCollectives(data),
    skew: () => drawSkew(data), clocks: () => drawClocks(data), kernels: () => [nameTable(data.kernel_stats, true)],
    operators: () => [nameTable(data.op_stats, false)], modules: () => [moduleTree(data.module_stats)], idle: () => drawIdle(data), memory: () => drawMemory(data),
    roofline: () => drawRoofline(data), tables: () => (data.extras.length ? data.extras.map(([name, columns]) => extraTable(name, rowsOf(columns, data.names))) : [element("p", { class: "hint" }, "No other table has rows.")]),
  };
  for (const place of root.querySelectorAll("[data-draw]")) {
    place.append(...draw[place.dataset.draw]().filter((part) => part !== null));
  }
}
