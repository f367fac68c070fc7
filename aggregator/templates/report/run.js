// Draws the charts of a run.
import { choice, element, legend, select } from "./dom.js";
import { NONE, formatBytes, formatCount, formatFlops, formatGbs, formatNs, formatNumber, formatPercent } from "./format.js";
import { numbers, sizeTicks, wholeTicks } from "./axes.js";
import { stackedBars } from "./bars.js";
import { lineChart } from "./lines.js";
import { scatter } from "./scatter.js";
import { heatMap } from "./heat.js";
import { timelineOf } from "./timeline.js";
import { bucketWaterfall } from "./buckets.js";
import { clockTable, collectiveTable, extraTable, nameTable, stragglerTable } from "./tables.js";

const PARTS = [["compute", "compute"], ["overlap", "communication under compute"], ["exposed", "exposed communication"], ["memory", "copies and fills"], ["idle", "idle"]];
const GAPS = [["host", "host: launched too late"], ["kernel", "kernel: below 30 µs"], ["other", "other"]];
const sum = (values) => values.reduce((a, b) => a + b, 0);

function laneName(rank, device) {
  return device === null ? `rank ${rank}` : `rank ${rank} · gpu ${device}`;
}

// The short form of a lane's name.
function briefName(rank, device) {
  return device === null ? String(rank) : `${rank}·gpu ${device}`;
}

function drawSteps(data) {
  const b = data.breakdown;
  const straggler = new Map(data.stragglers.map((s) => [s.rank, s]));
  const state = { sort: "rank", step: "mean" };
  const values = (lane) => {
    if (state.step === "mean") return b.mean[lane];
    return b.by_step[lane * b.steps.length + b.steps.indexOf(Number(state.step))];
  };
  const lines = (lane, v) => (i) => {
    const total = sum(v) || 1;
    const s = straggler.get(b.rank[lane]);
    const parts = i < 0 ? PARTS.map((_, k) => k).filter((k) => v[k] > 0) : [i];
    return [
      laneName(b.rank[lane], b.device[lane]) + (s && s.verdict !== "ok" ? ` (${s.verdict})` : ""),
      ...parts.map((k) => `${PARTS[k][1]}: ${formatNs(v[k])}, ${formatPercent((100 * v[k]) / total)}`),
      `step: ${formatNs(sum(v))}` + (state.step === "mean" ? `, mean of ${b.steps_of[lane]}` : ""),
      s ? `own excess: ${formatNs(s.own_excess_ns)} per step` : null,
    ].filter((line) => line !== null);
  };
  const keys = {
    rank: (r) => r.lane, step: (r) => -sum(r.values), compute: (r) => -(r.values[0] + r.values[1]), exposed: (r) => -r.values[2], idle: (r) => -r.values[4],
    own: (r) => -((straggler.get(b.rank[r.lane]) || {}).own_excess_ns || 0),
  };
  const { box, again } = stackedBars({
    label: "Step time by rank", kinds: PARTS, format: formatNs,
    rows: () => b.rank.map((rank, lane) => ({ lane, values: values(lane) })).filter((r) => r.values !== null)
      .sort((x, y) => keys[state.sort](x) - keys[state.sort](y) || x.lane - y.lane)
      .map((r) => ({ label: laneName(b.rank[r.lane], b.device[r.lane]), brief: briefName(b.rank[r.lane], b.device[r.lane]), marked: data.verdict.causes.includes(b.rank[r.lane]), values: r.values, lines: lines(r.lane, r.values) })),
  });
  const sorts = [["rank", "Rank"], ["step", "Step"], ["compute", "Compute"], ["exposed", "Exposed"], ["idle", "Idle"], ["own", "Own excess"]];
  const used = PARTS.filter((_, k) => b.mean.some((v) => v[k] > 0));
  return [
    element("div", { class: "controls" }, [
      choice("Sort by", sorts, "rank", (sort) => { state.sort = sort; again(); }),
      b.by_step.length ? select("Step", [["mean", "mean of all"], ...b.steps.map((s) => [s, String(s)])], "mean", (step) => { state.step = step; again(); }) : null,
    ]),
    legend(used), box,
    data.stragglers.length > 1 ? element("h3", {}, "Who waited for whom, per step") : null,
    data.stragglers.length > 1 ? stragglerTable(data.stragglers) : null,
  ];
}

function drawOverlap(data) {
  const b = data.breakdown;
  const { box } = stackedBars({
    label: "Communication by rank: hidden and exposed", kinds: [PARTS[1], PARTS[2]], format: formatNs,
    rows: () => b.rank.map((rank, lane) => {
      const v = [b.mean[lane][1], b.mean[lane][2]];
      return { label: laneName(rank, b.device[lane]), brief: briefName(rank, b.device[lane]), marked: data.verdict.causes.includes(rank), values: v,
        lines: () => [laneName(rank, b.device[lane]), `hidden ${formatNs(v[0])}, exposed ${formatNs(v[1])} per step`, `overlap ${formatPercent(b.overlap_pct[lane])}`] };
    }),
  });
  const parts = [legend([PARTS[1], PARTS[2]]), box];
  if (b.steps.length > 1) {
    const points = (k) => b.steps.map((step, i) => [step, b.of_step[i][k], () => [`step ${step}`, formatNs(b.of_step[i][k]) + ", mean over ranks"]]);
    parts.push(element("h3", {}, "By step, mean over ranks"), lineChart({
      label: "Hidden and exposed communication by step", xLabel: "step", yLabel: "time a step", formatX: (v) => String(Math.round(v * 100) / 100), formatY: formatNs, ticksX: wholeTicks, height: 220,
      series: [{ name: "hidden", kind: "overlap", points: points(1), marks: b.steps.length < 200 }, { name: "exposed", kind: "exposed", points: points(2), marks: b.steps.length < 200 }],
    }));
  }
  parts.push(numbers("The numbers behind these pictures", ["lane", "hidden", "exposed", "overlap"],
    b.rank.map((rank, lane) => [laneName(rank, b.device[lane]), formatNs(b.mean[lane][1]), formatNs(b.mean[lane][2]), formatPercent(b.overlap_pct[lane])])));
  return parts;
}

function drawCollectives(data) {
  const c = data.collectives;
  const parts = [];
  const state = { rate: "both" };
  const hasRate = (list) => c.bytes.some((bytes, i) => bytes > 0 && list[i] > 0);
  if (hasRate(c.busbw) || hasRate(c.busbw_wait)) {
    const kinds = [["busbw", "bus bandwidth", "transfer"], ["algbw", "algorithm bandwidth", "compute"], ["busbw_wait", "bus bandwidth with waits", "wait"]];
    const shown = () => kinds.filter(([key]) => (state.rate === "both" ? key !== "algbw" : key === state.rate));
    const { box, again } = scatter({
      label: "Bandwidth by size", xLabel: "bytes of the whole array", yLabel: "bandwidth", baseX: 4, formatX: formatBytes, formatY: formatGbs,
      points: () => shown().flatMap(([key, name, kind]) => c.bytes.map((bytes, i) => ({
        x: bytes, y: c[key][i], kind, r: 3, square: key === "busbw_wait",
        lines: () => [`${data.names[c.op[i]]}, ${formatBytes(bytes)}`, `${name}: ${formatGbs(c[key][i])}`, `transfer ${formatNs(c.transfer_ns[i])}, skew ${formatNs(c.skew_ns[i])}, last rank ${c.last_rank[i]}`,
          c.step[i] === null ? null : `step ${c.step[i]}`],
      }))),
      spans: () => (state.rate === "algbw" ? [] : c.groups.map((g) => ({ x: g.bytes, low: g.busbw_p10, high: g.busbw_p90, kind: "transfer" }))),
    });
    const colours = element("div");
    const explainColours = () => colours.replaceChildren(legend(shown().map(([, name, kind]) => [kind + (kind === "wait" ? "" : " round"), name])));
    explainColours();
    parts.push(element("div", { class: "controls" }, choice("Show", [["both", "Bus, with and without waits"], ["busbw", "Bus"], ["busbw_wait", "Bus with waits"], ["algbw", "Algorithm"]], "both", (rate) => { state.rate = rate; again(); explainColours(); })), colours, box);
  }
  parts.push(collectiveTable(c.groups, data.names));
  const matched = Object.entries(c.matched).map(([way, n]) => `${formatCount(n)} by ${way}`).join(", ");
  parts.push(element("p", { class: "hint" }, `Matched across ranks: ${matched || NONE}.`));
  return parts;
}

function drawSkew(data) {
  const c = data.collectives;
  const at = (i) => c.at_ns[i];
  const points = c.skew_ns.map((skew, i) => [at(i), skew, () => [
    `${data.names[c.op[i]]} ${formatBytes(c.bytes[i])}` + (c.step[i] === null ? "" : `, step ${c.step[i]}`), `skew ${formatNs(skew)}` + (c.complete[i] ? "" : " or more: ranks are missing"),
    `clock error ${c.error_ns[i] === null ? "unknown" : formatNs(c.error_ns[i])}`, `last: rank ${c.last_rank[i]}`, c.disagree[i] ? "waits by durations alone differ" : null]]);
  const band = c.error_ns.map((error, i) => [at(i), 0, error]).filter((p) => p[2] !== null);
  const inside = c.skew_ns.filter((skew, i) => c.error_ns[i] !== null && skew <= c.error_ns[i]).length;
  const last = new Map();
  for (const rank of c.last_rank) last.set(rank, (last.get(rank) || 0) + 1);
  const most = [...last].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([rank, n]) => `rank ${rank} in ${formatCount(n)}`).join(", ");
  const spec = { label: "Arrival skew over time", xLabel: "time", yLabel: "last arrival − first", formatX: formatNs, formatY: formatNs,
    series: [{ name: "skew", kind: "transfer", points, marks: true, line: false }], bands: [{ kind: "error", points: band }] };
  const place = element("div");
  const show = (logY) => place.replaceChildren(lineChart({ ...spec, logY,
    bands: [{ kind: "error", points: band.map(([x, , high]) => [x, logY ? 1 : 0, high]) }] }));
  const log = Math.max(...c.skew_ns, 1) > 30 * Math.max(1, ...c.error_ns.map((e) => e || 0));
  show(log);
  return [
    element("div", { class: "controls" }, choice("Scale", [["log", "Logarithmic"], ["linear", "Linear"]], log ? "log" : "linear", (scale) => show(scale === "log"))),
    legend([["transfer round", "skew of a collective"], ["error", "clock error (95 %)"]]), place,
    element("p", { class: "hint" }, `${formatCount(inside)} of ${formatCount(c.skew_ns.length)} are within the clock error. Most frequent last ranks: ${most || NONE}.`),
  ];
}

function drawClocks(data) {
  const rows = data.clocks;
  const state = { value: "error_ns" };
  const kinds = [["error_ns", "Error"], ["bound_ns", "Bound"], ["residual_p95_ns", "Residuals"], ["offset_ns", "Offset"]].filter(([key]) => rows.some((r) => r[key]));
  const parts = [];
  if (kinds.length) {
    state.value = kinds[0][0];
    const { box, again } = stackedBars({
      label: "Clock fits by rank", kinds: [["compute", "value"]], format: formatNs,
      rows: () => rows.filter((r) => r[state.value] !== null).map((r) => ({
        label: `rank ${r.rank}` + (r.clock === "device" ? " gpu" : ""), values: [Math.abs(r[state.value])],
        lines: () => [`rank ${r.rank}, ${r.clock} clock by ${r.method}`, `offset ${formatNs(r.offset_ns)}`, `drift ${r.drift_ppb === null ? "not measured" : (r.drift_ppb / 1000).toFixed(3) + " ppm"}`,
          `error ${r.error_ns === null ? "unknown" : formatNs(r.error_ns)}, bound ${r.bound_ns === null ? "none" : formatNs(r.bound_ns)}`],
      })),
    });
    parts.push(element("div", { class: "controls" }, choice("Show", kinds, state.value, (value) => { state.value = value; again(); })), box);
  }
  parts.push(clockTable(rows));
  return parts;
}

function drawIdle(data) {
  const { box } = stackedBars({
    label: "Idle gaps by stream and cause", kinds: GAPS, format: formatNs,
    rows: () => data.idle.map((r) => {
      const name = laneName(r.rank, r.device) + (r.stream === null ? "" : ` · stream ${r.stream}`);
      const brief = briefName(r.rank, r.device) + (r.stream === null ? "" : `·${r.stream}`);
      return { label: name, brief, values: r.idle_ns, marked: data.verdict.causes.includes(r.rank),
        lines: (i) => [name, ...GAPS.map(([, text], k) => (i < 0 || i === k ? `${text}: ${formatNs(r.idle_ns[k])} in ${formatCount(r.gaps[k])} gaps` : null)).filter(Boolean)] };
    }),
  });
  return [legend(GAPS), box, numbers("The numbers behind this picture", ["rank", "device", "stream", ...GAPS.map(([kind]) => kind)],
    data.idle.map((r) => [r.rank, r.device === null ? NONE : r.device, r.stream === null ? "all" : r.stream, ...r.idle_ns.map((v, k) => `${formatNs(v)} in ${r.gaps[k]}`)]))];
}

function drawMemory(data) {
  const curves = data.memory;
  const name = (c) => laneName(c.rank, c.device);
  const state = { shown: "all" };
  const place = element("div");
  const show = () => {
    const chosen = curves.filter((c, i) => state.shown === "all" || String(i) === state.shown);
    const series = chosen.flatMap((c, i) => {
      const textOf = (bytes, k) => () => [formatBytes(bytes), `at ${formatNs(c.at_ns[k])}`];
      const kind = data.verdict.causes.includes(c.rank) ? "exposed" : chosen.length > 8 ? "faint" : "range-" + (i % 6);
      const used = { name: `${name(c)}: in use`, kind, points: c.at_ns.map((t, k) => [t, c.in_use_bytes[k], textOf(c.in_use_bytes[k], k)]), marks: c.at_ns.length < 20 };
      const reserved = chosen.length === 1 && c.reserved_bytes.some((v) => v !== null)
        ? [{ name: `${name(c)}: held by the allocator`, kind: "idle", points: c.at_ns.map((t, k) => [t, c.reserved_bytes[k], textOf(c.reserved_bytes[k], k)]) }] : [];
      return [used, ...reserved];
    });
    place.replaceChildren(lineChart({ label: "Memory in use", xLabel: "time", yLabel: "bytes", formatX: formatNs, formatY: formatBytes, ticksY: sizeTicks, steps: true, series }));
  };
  show();
  const peaks = [...curves].sort((a, b) => b.peak_bytes - a.peak_bytes).slice(0, 8);
  const holders = (text) => text.split("; ").filter(Boolean).map((part) => {
    const cut = part.lastIndexOf("=");
    return cut < 0 ? part : `${part.slice(0, cut)} ${formatBytes(Number(part.slice(cut + 1)))}`;
  }).join(", ");
  return [
    element("div", { class: "controls" }, select("Show", [["all", "all"], ...curves.map((c, i) => [String(i), name(c)])], "all", (shown) => { state.shown = shown; show(); })),
    place, numbers("Highest peaks, and what was alive", ["", "peak", "largest holders"], peaks.map((c) => [name(c), formatBytes(c.peak_bytes), holders(c.alive) || NONE])),
  ];
}

function drawRoofline(data) {
  const { points, devices, of } = data.roofline;
  const largest = Math.max(...points.map((p) => p.total_ns));
  const roofs = devices.map((d) => {
    const [flat, slope] = [d.peak_flops, d.peak_bytes_per_s];
    const knee = flat && slope ? flat / slope : null;
    const at = (x) => Math.min(flat || Infinity, slope ? slope * x : Infinity);
    return { flat, knee, name: `${data.names[d.name]}: ${flat ? formatFlops(flat) : "arithmetic limit unknown"}, ${slope ? formatBytes(slope) + "/s" : "memory limit unknown"}`,
      line: (x0, x1) => [x0, ...(knee && knee > x0 && knee < x1 ? [knee] : []), x1].map((x) => [x, at(x)]) };
  });
  const { box } = scatter({
    label: "Roofline", xLabel: "arithmetic intensity, FLOPs by byte", yLabel: "FLOP/s", formatX: formatNumber, formatY: formatFlops, baseX: 10, roofs,
    points: () => points.map((p) => ({ x: p.intensity, y: p.flops_per_s, kind: "compute", r: 3 + 7 * Math.sqrt(p.total_ns / largest), focus: points.length < 100,
      lines: () => [data.names[p.name], `${formatFlops(p.flops_per_s)} at ${formatNumber(p.intensity)} FLOPs per byte`, `${formatNs(p.total_ns)} in total`] })),
  });
  return [element("p", { class: "hint" }, `Each point is one ${of}, summed over calls and ranks. Its area grows with its time.`), box,
    numbers("The numbers behind this picture", [of, "FLOPs by byte", "FLOP/s", "time"], points.map((p) => [data.names[p.name], formatNumber(p.intensity), formatFlops(p.flops_per_s), formatNs(p.total_ns)]))];
}

// Draws the charts of a run into its page.
export function drawRun(data, root) {
  const ranks = data.verdict.kind === "cause" ? data.verdict.causes : [];
  const draw = {
    steps: () => drawSteps(data), lateness: () => [heatMap(data.heat, ranks)], timeline: () => [timelineOf(data.timeline, data.names, ranks)],
    overlap: () => drawOverlap(data), buckets: () => [bucketWaterfall(data.buckets, ranks[0])], collectives: () => drawCollectives(data),
    skew: () => drawSkew(data), clocks: () => drawClocks(data), kernels: () => [nameTable(data.kernels, data.names, true)],
    operators: () => [nameTable(data.operators, data.names, false)], idle: () => drawIdle(data), memory: () => drawMemory(data),
    roofline: () => drawRoofline(data), tables: () => (data.extras.length ? data.extras.map(extraTable) : [element("p", { class: "hint" }, "No other table has rows.")]),
  };
  for (const place of root.querySelectorAll("[data-draw]")) {
    place.append(...draw[place.dataset.draw]().filter((part) => part !== null));
  }
}
