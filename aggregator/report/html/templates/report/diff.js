// The comparison of two runs.
import { choice, element, legend } from "./dom.js";
import { formatNs, formatNumber, formatPercent } from "./format.js";
import { intervalChart } from "./intervals.js";
import { table } from "./table.js";

const GROUPS = { step: "part of the step", account: "account of lost time", range: "range", operator: "operator", kernel: "kernel", collective: "collective", bucket: "bucket", category: "kind of device work", module: "module", source: "source line" };
// Sums over many names. They are compared where the names of the runs do not match.
const CUTS = [["category", "Device work by kind"], ["module", "Modules"], ["source", "Source lines"]];
const JUDGEMENTS = { slower: "slower", faster: "faster", unclear: "not significant" };
// Maximum number of rows in the chart; the table has all rows.
const MOST = 24;

const place = (row) => (row.rank === null ? "all ranks" : `rank ${row.rank}`);
const signed = (ns) => (ns > 0 ? "+" : ns < 0 ? "−" : "") + formatNs(Math.abs(ns));
const signedPercent = (pct) => (pct > 0 ? "+" : pct < 0 ? "−" : "") + formatPercent(Math.abs(pct));
const shortP = (p) => (p >= 0.001 ? p.toFixed(3) : p > 0 ? p.toExponential(0) : "0");
const certain = (row) => row.judgement !== "unclear";
const isCut = (row) => CUTS.some(([group]) => group === row.group);

function lines(row) {
  return [
    `${row.name} (${row.measure}), ${place(row)}`, JUDGEMENTS[row.judgement],
    `change ${signed(row.change_ns)} per step` + (row.rank === null ? "" : " relative to the other ranks") + `, ${signedPercent(row.step_pct)} of a step`,
    `between ${signed(row.low_ns)} and ${signed(row.high_ns)}`, `A ${formatNs(row.a_ns)}, B ${formatNs(row.b_ns)}`,
  ];
}

function drawChanges(data) {
  const names = data.rows.filter((row) => !isCut(row));
  const sure = names.filter(certain);
  const cuts = CUTS.filter(([group]) => data.rows.some((row) => row.group === group));
  const state = { shown: cuts.length || !sure.length ? "step" : "sure" };
  const chosen = () => {
    if (state.shown === "sure") return sure;
    if (state.shown === "step") return names.filter((row) => row.group === "step" && row.rank === null);
    if (state.shown !== "all") return data.rows.filter((row) => row.group === state.shown);
    return [...names].sort((x, y) => Math.abs(y.change_ns) - Math.abs(x.change_ns));
  };
  const { box, again } = intervalChart({
    label: "Changes per step with their intervals", format: (ns) => (ns === 0 ? "0" : signed(ns)),
    rows: () => chosen().slice(0, MOST).map((row) => ({
      label: `${place(row)} · ${row.name} · ${row.measure}`, value: row.change_ns, low: row.low_ns, high: row.high_ns,
      kind: row.judgement, certain: certain(row), lines: () => lines(row),
    })),
  });
  const note = element("p", { class: "hint", "aria-live": "polite" });
  const showRest = () => {
    const rest = chosen().length - MOST;
    note.textContent = rest > 0 ? `The ${MOST} largest changes; ${rest} more are in the table below.` : "";
  };
  showRest();
  const options = [["sure", `Significant (${sure.length})`], ["step", "Parts of the step"], ...cuts, ["all", "Largest of all"]]
    .filter(([key]) => key !== "sure" || sure.length);
  return [
    element("div", { class: "controls" }, choice("Show", options, state.shown, (shown) => { state.shown = shown; again(); showRest(); })),
    legend([["slower round", "slower"], ["faster round", "faster"], ["unclear round", "not significant"]]), box, note,
  ];
}

function drawRows(data) {
  const ns = (title, key, format, hint) => ({ title, hint, value: (r) => r[key], text: (r) => format(r[key]) });
  const columns = [
    { title: "what", name: true, value: (r) => r.name }, { title: "kind", name: true, word: true, value: (r) => GROUPS[r.group] },
    { title: "time", name: true, word: true, value: (r) => r.measure },
    { title: "where", name: true, word: true, value: (r) => place(r) },
    ns("A", "a_ns", formatNs, "Median over steps; of the step and its parts, mean of the middle half"), ns("B", "b_ns", formatNs, "As in A"),
    ns("change", "change_ns", signed, "For one rank: relative to the other ranks"), ns("from", "low_ns", signed, "95 % interval"), ns("to", "high_ns", signed, "95 % interval"),
    { title: "share of a step", value: (r) => r.step_pct, text: (r) => signedPercent(r.step_pct) },
    { title: "p", hint: "Probability of such a change if the true change is negligible, adjusted for the number of rows", value: (r) => r.p, text: (r) => shortP(r.p) },
    { title: "judgement", name: true, word: true, value: (r) => JUDGEMENTS[r.judgement] },
  ];
  return [table(columns, data.rows, { label: "comparisons", search: true, sort: 10, ascending: true, mark: (r) => "diff-" + r.judgement })];
}

function drawKernelCounts(data) {
  const count = (title, key) => ({ title, value: (r) => r[key], text: (r) => formatNumber(r[key]) });
  const change = (r) => r.b - r.a;
  const columns = [
    { title: "kernel", name: true, value: (r) => r.name }, count("A", "a"), count("B", "b"),
    { title: "change", hint: "B minus A", value: (r) => Math.abs(change(r)), text: (r) => (change(r) > 0 ? "+" : "−") + formatNumber(Math.abs(change(r))) },
  ];
  return [table(columns, data.kernels, { label: "kernels whose number changed", search: data.kernels.length > 12, sort: 3 })];
}

function drawOneSided(data) {
  const columns = [
    { title: "what", name: true, value: (r) => r.name }, { title: "kind", name: true, word: true, value: (r) => GROUPS[r.group] },
    { title: "number per step", hint: "Mean over ranks", value: (r) => r.calls, text: (r) => (r.calls === null ? "" : formatNumber(r.calls)) },
    { title: "time per step", hint: "Mean over ranks", value: (r) => r.step_ns, text: (r) => formatNs(r.step_ns) },
  ];
  const side = (title, rows) => (rows.length ? [element("h3", {}, title), table(columns, rows, { label: title, search: rows.length > 12, sort: 3 })] : []);
  return [...side("New in B", data.appeared), ...side("Gone in B", data.vanished)];
}

// Draws the comparison into its tab.
export function drawDiff(data, root) {
  const draw = { changes: drawChanges, rows: drawRows, kernels: drawKernelCounts, "one-sided": drawOneSided };
  for (const place of root.querySelectorAll("[data-diff]")) place.append(...draw[place.dataset.diff](data));
}
