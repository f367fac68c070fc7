// The clocks that arrivals are compared by.
import { element } from "../../../templates/report/dom.js";
import { formatCount, formatNs } from "../../../templates/report/format.js";
import { count, ns, table } from "../../../templates/report/table.js";

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

// Clocks, one row per fit.
function clockTable(rows) {
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
