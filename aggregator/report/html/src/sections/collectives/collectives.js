// Bandwidth by operation and size.
import { choice, element, legend } from "../../../templates/report/dom.js";
import { NONE, formatBytes, formatCount, formatGbs, formatNs } from "../../../templates/report/format.js";
import { scatter } from "../../../templates/report/scatter.js";
import { stripChart } from "../../../templates/report/strip.js";
import { count, ns, table } from "../../../templates/report/table.js";

const RATES = [["busbw_gbs", "bus bandwidth", "transfer"], ["algbw_gbs", "algorithm bandwidth", "compute"], ["busbw_incl_wait_gbs", "bus bandwidth with waits", "wait"]];
// With fewer sizes, a chart by size has nothing to show along its axis.
const LEAST_SIZES = 3;

const rateLines = (r, key, name) => () => [`${r.op}, ${formatBytes(r.bytes)}`, `${name}: ${formatGbs(r[key])}`,
  `transfer ${formatNs(r.transfer_ns)}, skew ${formatNs(r.skew_ns)}, last rank ${r.last_rank}`, r.step === null ? null : `step ${r.step}`].filter((line) => line !== null);

// A row for each operation and size.
function ratesInRows(data, shown) {
  const rows = () => data.collective_groups.map((g) => {
    const name = `${data.names[g.op]} ${formatBytes(g.bytes)}`;
    const own = data.collective_instances.filter((r) => r.op === data.names[g.op] && r.bytes === g.bytes);
    const points = shown().flatMap(([key, text, kind]) => own.filter((r) => r[key] > 0).map((r) => ({ x: r[key], kind, lines: rateLines(r, key, text) })));
    return { label: name, points, lines: () => [name, `${formatCount(g.count)} collectives`, `bus bandwidth ${formatGbs(g.busbw)}, with waits ${formatGbs(g.busbw_wait)} (medians)`] };
  }).filter((row) => row.points.length);
  return stripChart({ label: "Bandwidth by operation and size", xLabel: "bandwidth; tick and number: median", format: formatGbs, rows });
}

function ratesBySize(data, shown, state) {
  return scatter({
    label: "Bandwidth by size", xLabel: "bytes of the whole array", yLabel: "bandwidth", baseX: 4, formatX: formatBytes, formatY: formatGbs,
    points: () => shown().flatMap(([key, name, kind]) => data.collective_instances.map((r) => ({ x: r.bytes, y: r[key], kind, r: 3, square: kind === "wait", lines: rateLines(r, key, name) }))),
    spans: () => (state.rate === "algbw_gbs" ? [] : data.collective_groups.map((g) => ({ x: g.bytes, low: g.busbw_p10, high: g.busbw_p90, kind: "transfer" }))),
  });
}

export function drawCollectives(data) {
  const rows = data.collective_instances;
  const parts = [];
  const state = { rate: "busbw_gbs" };
  const hasRate = (key) => rows.some((r) => r.bytes > 0 && r[key] > 0);
  const rates = RATES.filter(([key]) => hasRate(key));
  if (rates.length) {
    const sizes = new Set(rows.filter((r) => r.bytes > 0).map((r) => r.bytes)).size;
    state.rate = rates[0][0];
    const shown = () => rates.filter(([key]) => (state.rate === "both" ? key !== "algbw_gbs" : key === state.rate));
    const { box, again } = sizes < LEAST_SIZES ? ratesInRows(data, shown) : ratesBySize(data, shown, state);
    const colours = element("div");
    const explainColours = () => colours.replaceChildren(legend(shown().map(([, name, kind]) => [kind + (kind === "wait" ? "" : " round"), name])));
    explainColours();
    const choices = [["busbw_gbs", "Bus"], ["busbw_incl_wait_gbs", "Bus with waits"], ["both", "Both"], ["algbw_gbs", "Algorithm"]].filter(([key]) => key === "both" || hasRate(key));
    parts.push(element("div", { class: "controls" }, choice("Show", choices, state.rate, (rate) => { state.rate = rate; again(); explainColours(); })), colours, box);
  }
  parts.push(collectiveTable(data.collective_groups, data.names));
  const matched = Object.entries(data.matched).map(([way, n]) => `${formatCount(n)} by ${way}`).join(", ");
  parts.push(element("p", { class: "hint" }, `Matched across ranks: ${matched || NONE}.`));
  return parts;
}

// Collectives by operation and size.
function collectiveTable(groups, names) {
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
