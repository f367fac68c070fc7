// Collectives: bandwidth, arrival skew, and the clocks that arrivals are compared by.
import { groupBy } from "./rows.js";
import { choice, element, legend } from "./dom.js";
import { NONE, formatBytes, formatCount, formatGbs, formatNs } from "./format.js";
import { lineChart } from "./lines.js";
import { scatter } from "./scatter.js";
import { stripChart } from "./strip.js";
import { clockTable, collectiveTable } from "./tables.js";

const RATES = [["busbw_gbs", "bus bandwidth", "transfer"], ["algbw_gbs", "algorithm bandwidth", "compute"], ["busbw_incl_wait_gbs", "bus bandwidth with waits", "wait"]];
// With fewer sizes, a chart by size has nothing to show along its axis.
const LEAST_SIZES = 3;
// Last ranks with a colour of their own.
const LAST_KINDS = ["range-0", "range-1", "range-2", "range-3", "range-5"];

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

export function drawSkew(data) {
  const rows = data.collective_instances.filter((r) => r.ranks_seen > 1);
  const lines = (r) => () => [
    `${r.op} ${formatBytes(r.bytes)}` + (r.step === null ? "" : `, step ${r.step}`), `skew ${formatNs(r.skew_ns)}` + (r.complete ? "" : " or more: ranks are missing"),
    `clock error ${r.error_ns === null ? "unknown" : formatNs(r.error_ns)}`, `last: rank ${r.last_rank}`, r.clocks_disagree ? "waits by durations alone differ" : null].filter((line) => line !== null);
  const known = rows.filter((r) => r.error_ns !== null);
  const band = (low) => known.map((r) => [r.first_start_ns, low, r.error_ns]);
  const inside = known.filter((r) => r.skew_ns <= r.error_ns).length;
  const last = groupBy(rows, (r) => r.last_rank).sort((a, b) => b.length - a.length);
  // The slow rank has its own colour; the most frequent other ranks have the next ones.
  const isSlow = ([first]) => data.causes.includes(first.last_rank);
  const kinds = new Map(last.filter((of) => !isSlow(of)).map((of, i) => [of[0].last_rank, LAST_KINDS[i] || "faint"]));
  const kindOf = (of) => (isSlow(of) ? "culprit" : kinds.get(of[0].last_rank));
  const rest = last.filter((of) => kindOf(of) === "faint").length;
  const most = last.slice(0, 3).map((of) => `rank ${of[0].last_rank} in ${formatCount(of.length)}`).join(", ");
  const place = element("div");
  const show = (logY) => place.replaceChildren(lineChart({ label: "Arrival skew over time", xLabel: "time", yLabel: "last arrival − first", formatX: formatNs, formatY: formatNs, logY,
    series: [...last].reverse().map((of) => ({ name: `last: rank ${of[0].last_rank}`, kind: kindOf(of), points: of.map((r) => [r.first_start_ns, r.skew_ns, lines(r)]), marks: true, line: false })),
    bands: [{ kind: "error", points: band(logY ? 1 : 0) }] }));
  const log = Math.max(...rows.map((r) => r.skew_ns), 1) > 30 * Math.max(1, ...rows.map((r) => r.error_ns || 0));
  show(log);
  return [
    element("div", { class: "controls" }, choice("Scale", [["log", "Logarithmic"], ["linear", "Linear"]], log ? "log" : "linear", (scale) => show(scale === "log"))),
    legend([...last.filter((of) => kindOf(of) !== "faint").map((of) => [kindOf(of) + " round", `rank ${of[0].last_rank} is last` + (isSlow(of) ? ", the slow rank" : "")]),
      ...(rest ? [["faint round", `one of ${formatCount(rest)} other ranks is last`]] : []), ["error", "clock error (95 %)"]]), place,
    element("p", { class: "hint" }, `${formatCount(inside)} of ${formatCount(rows.length)} are within the clock error. Most frequent last ranks: ${most || NONE}.`),
  ];
}

// One sentence; the table is folded. Nothing was corrected where all ranks share one clock.
export function drawClocks(data) {
  const rows = data.clock_fit;
  const largest = (key) => rows.reduce((best, r) => (r[key] !== null && (best === null || Math.abs(r[key]) > Math.abs(best[key])) ? r : best), null);
  const [offset, error] = [largest("offset_ns"), largest("error_ns")];
  const unknown = rows.filter((r) => r.error_ns === null).length;
  if (!unknown && offset.offset_ns === 0 && error.error_ns === 0) return [element("p", { class: "say" }, "All ranks share one clock: nothing was corrected, and times of different ranks compare without an error.")];
  const parts = [
    error === null ? null : `The largest clock error is ${formatNs(error.error_ns)} (95 %), on rank ${error.rank}.`,
    unknown ? `The error is unknown for ${formatCount(unknown)} of ${formatCount(rows.length)} clocks.` : null,
    offset.offset_ns === 0 ? "No clock was corrected." : `The largest correction is ${formatNs(offset.offset_ns)}, on rank ${offset.rank}.`,
  ];
  return [element("p", { class: "say" }, parts.filter((part) => part !== null).join(" ")),
    element("details", { class: "numbers" }, [element("summary", {}, `The clocks of all ranks (${formatCount(rows.length)} rows)`), clockTable(rows)])];
}
