// The tables of the page.
import { element } from "./dom.js";
import { formatBytes, formatCount, formatFlops, formatGbs, formatNs, formatNumber, formatPercent } from "./format.js";
import { table } from "./table.js";

const ns = (title, key, hint) => ({ title, hint, value: (r) => r[key], text: (r) => formatNs(r[key]) });
const count = (title, key, hint) => ({ title, hint, value: (r) => r[key], text: (r) => formatCount(r[key]) });

// Kernels or operators.
export function nameTable(rows, kernels) {
  const all = rows.reduce((sum, r) => sum + r.self_ns, 0) || 1;
  const columns = [
    { title: kernels ? "kernel" : "operator or range", name: true, value: (r) => r.name },
    kernels ? { title: "work", name: true, word: true, value: (r) => r.work } : null,
    count("ranks", "ranks"), count("calls", "calls"), ns("total", "total_ns", "Over all ranks"),
    ns("self", "self_ns", "Total less the time of what runs inside"),
    { title: "share", hint: "Of the self time of all rows listed", value: (r) => r.self_ns, text: (r) => formatPercent((100 * r.self_ns) / all) }, ns("mean", "mean_ns"), ns("min", "min_ns"), ns("max", "max_ns"),
    { title: "slowest", hint: "Rank whose calls take longest, and the ratio to the median rank, or of two ranks to the faster; only where its calls take 1 % of its steps", value: (r) => r.vs_median_device,
      text: (r) => (r.vs_median_device === null ? null : `${r.vs_median_device.toFixed(2)} × on ${r.rank}`) },
    { title: "FLOP/s", value: (r) => (r.flops && r.flops_ns ? r.flops / r.flops_ns : null), text: (r) => (r.flops && r.flops_ns ? formatFlops((r.flops / r.flops_ns) * 1e9) : null) },
    { title: "bytes", hint: kernels ? null : "The least that the calls with FLOPs move, unless the recording states them", value: (r) => r.bytes, text: (r) => formatBytes(r.bytes) },
    { title: "bound", hint: "By the roofline: memory is certain with cold caches, compute is likely", value: (r) => r.bound },
    { title: "occupancy", hint: "Estimated, mean by time", value: (r) => r.occupancy_pct, text: (r) => formatPercent(r.occupancy_pct) },
    { title: "limit", hint: "What keeps the occupancy of the longest call from being higher", value: (r) => r.occupancy_limit },
    { title: "blocks/SM", hint: "Mean by time", value: (r) => r.blocks_per_sm, text: (r) => formatNumber(r.blocks_per_sm) },
    count("threads", "block_threads", "Of a block, in the longest call"), count("registers", "registers", "Of a thread, in the longest call"),
    { title: "shared", hint: "Memory of a block, in the longest call", value: (r) => r.shared_mem_bytes, text: (r) => formatBytes(r.shared_mem_bytes) },
  ].filter((c) => c !== null && (c.name || rows.some((r) => c.value(r) !== null)));
  return table(columns, rows, { label: kernels ? "kernels" : "operators and ranges", search: true, sort: columns.findIndex((c) => c.title === (kernels ? "total" : "self")) });
}

// Own work, delays and waits by rank. `rows` are in the order to show: the cause first. If the verdict stands on a range, its
// numbers come before those of all own work.
export function stragglerTable(rows) {
  const order = new Map(rows.map((r, i) => [r, i]));
  const range = rows[0].stands_on === "range";
  const [z, share] = range ? ["evidence_z", "evidence_persistence"] : ["z", "persistence"];
  const columns = [
    count("rank", "rank"), { title: "verdict", name: true, word: true, value: (r) => order.get(r), text: (r) => r.verdict },
    ns("delay", "step_delay_ns", "Time that the rank adds to every step"),
    { title: "why", name: true, value: (r) => (r.stands_on === null ? "" : [r.reason, r.evidence_range].filter((part) => part !== null).join(" in ")) },
    range ? { title: "longer in range", hint: `Time ${rangeOf(rows[0])} above the lower median of the other ranks, per step: what the verdict stands on`,
      value: (r) => r.evidence_excess_ns, text: (r) => formatNs(r.evidence_excess_ns) } : null,
    { title: "z", hint: "Distance from the other ranks in standard errors, of " + (range ? "the time in that range" : "own excess"), value: (r) => r[z],
      text: (r) => (r[z] === null ? null : Math.abs(r[z]) > 100 ? (r[z] > 0 ? "above 100" : "below −100") : r[z].toFixed(1)) },
    { title: "of steps", hint: "Share of steps that show it", value: (r) => r[share], text: (r) => (r[share] === null ? null : formatPercent(100 * r[share])) },
    ns("caused wait", "caused_wait_ns", "Waits of other ranks that are charged to this rank"),
    ns("suffered wait", "suffered_wait_ns", "Time spent waiting for other ranks"), ns("inherited", "inherited_ns", "Lateness caused by other ranks"),
    ns("own excess", "own_excess_ns", "All own work between collectives above the lower median of the ranks, per step"),
    { title: "95 % interval", value: (r) => r.own_excess_low_ns, text: (r) => (r.own_excess_low_ns === null ? null : `${formatNs(r.own_excess_low_ns)} to ${formatNs(r.own_excess_high_ns)}`) },
    { title: "slowdown", hint: "Time of the run divided by its estimated time if this rank did as much work as the others", value: (r) => r.slowdown, text: (r) => (r.slowdown === null ? null : r.slowdown.toFixed(3)) },
  ].filter((c) => c !== null);
  return table(columns, rows, { label: "verdict by rank", sort: 1, ascending: true, rows: 16, mark: (r) => "verdict-" + r.verdict });
}

function rangeOf(row) {
  return row.evidence_range === null ? "outside of all recorded ranges" : `in ${row.evidence_range}`;
}

// Clocks, one row per fit.
export function clockTable(rows) {
  const columns = [
    count("rank", "rank"), { title: "clock", name: true, word: true, value: (r) => r.clock }, { title: "by", name: true, word: true, value: (r) => r.method },
    ns("correction", "offset_ns", "Added to this clock to get global time: below 0 for a clock that is ahead"), { title: "its drift", hint: "Change of the correction: below 0 for a clock that is fast", value: (r) => r.drift_ppb, text: (r) => (r.drift_ppb === null ? "not measured" : (r.drift_ppb / 1000).toFixed(3) + " ppm") },
    ns("residual p95", "residual_p95_ns", "95th percentile of the samples' distances from the fit"),
    { title: "error (95 %)", value: (r) => r.error_ns, text: (r) => (r.error_ns === null ? "unknown" : formatNs(r.error_ns)) },
    ns("bias", "bias_ns", "The largest further error that no sample shows: a rank that always leaves collectives late looks like a clock that is ahead"),
    { title: "bound", value: (r) => r.bound_ns, text: (r) => (r.bound_ns === null ? "none" : formatNs(r.bound_ns)) },
    count("samples", "samples"), count("violations", "violations", "Collectives that it left before another rank had entered"),
  ];
  return table(columns, rows, { label: "clock fits", sort: 0, ascending: true, rows: 16 });
}

// Collectives by operation and size.
export function collectiveTable(groups, names) {
  const rate = (title, key, hint) => ({ title, hint, value: (r) => r[key], text: (r) => (r[key] === null ? null : formatGbs(r[key])) });
  const columns = [
    { title: "operation", name: true, word: true, value: (r) => names[r.op] }, { title: "size", value: (r) => r.bytes, text: (r) => formatBytes(r.bytes) },
    count("count", "count"), count("incomplete", "incomplete"), ns("skew", "skew_ns", "Median"), ns("transfer", "transfer_ns", "Median, from the last arrival to the end"),
    rate("algbw", "algbw", "Median"), rate("busbw", "busbw", "Median"),
    { title: "busbw p10–p90", value: (r) => r.busbw_p90, text: (r) => (r.busbw_p10 === null ? null : `${formatGbs(r.busbw_p10).replace(" GB/s", "")} to ${formatGbs(r.busbw_p90)}`) },
    rate("busbw with waits", "busbw_wait", "Median, over the ranks' whole durations"),
  ];
  return table(columns, groups, { label: "collectives by operation and size", sort: 1, search: false });
}

function unitOf(column, value) {
  if (value === null || typeof value === "boolean") return value === null ? null : value ? "yes" : "no";
  if (typeof value === "string") return value;
  if (column.endsWith("_ns")) return formatNs(value);
  if (column.endsWith("_bytes") || column === "bytes") return formatBytes(value);
  if (column.endsWith("_pct")) return formatPercent(value);
  if (column.endsWith("_gbs")) return formatGbs(value);
  return formatNumber(value);
}

// A table of the analysis. The suffix of a column's name gives its unit.
export function extraTable(name, rows) {
  const columns = Object.keys(rows[0]).filter((column) => rows.some((r) => r[column] !== null)).map((column) => ({
    title: column.replace(/_pct$/, " %").replace(/_(ns|gbs)$/, "").replaceAll("_", " "), name: rows.some((r) => typeof r[column] === "string"), value: (r) => r[column], text: (r) => unitOf(column, r[column]),
  }));
  const title = name === "critical_path" ? "per-rank critical path" : name.replaceAll("_", " ");
  const details = element("details", { class: "extra", id: "table-" + name }, element("summary", {}, `${title} (${formatCount(rows.length)} rows)`));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(table(columns, rows, { label: title, search: columns.some((c) => c.name), sort: 0, ascending: true, rows: 20 }));
  });
  return details;
}
