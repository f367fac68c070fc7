// Arrival skew over time.
import { groupBy } from "../../../templates/report/rows.js";
import { choice, element, legend } from "../../../templates/report/dom.js";
import { NONE, formatBytes, formatCount, formatNs } from "../../../templates/report/format.js";
import { lineChart } from "../../../templates/report/lines.js";

// Last ranks with a colour of their own.
const LAST_KINDS = ["range-0", "range-1", "range-2", "range-3", "range-5"];

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
