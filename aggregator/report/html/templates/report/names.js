// Kernels and operators by name.
import { formatBytes, formatFlops, formatNumber, formatPercent } from "./format.js";
import { count, ns, table } from "./table.js";

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
