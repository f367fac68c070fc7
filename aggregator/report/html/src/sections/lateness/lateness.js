// Lateness: the quantity that the verdict stands on, by rank and step, as marks and as a map.
import { element, legend } from "../../../templates/report/dom.js";
import { formatNs, span } from "../../../templates/report/format.js";
import { heatMap } from "../../../templates/report/heat.js";
import { placeOf } from "../../../templates/report/ranks.js";
import { medianOf, stripChart } from "../../../templates/report/strip.js";

// Rows of the strip. The other ranks share one row.
const STRIP_ROWS = 16;

// The ranks of a row of the map with their values, one per column.
function rowsOfMap(heat, mode) {
  const columns = heat.columns.length;
  return heat.rows.map(([first, last], row) => ({
    first, last, values: heat.columns.map((steps, column) => [steps, heat[mode][row * columns + column]]).filter(([, v]) => v !== null).map(([steps, v]) => [steps, v * heat.unit_ns]),
  })).filter((row) => row.values.length).map((row) => ({ ...row, median: medianOf(row.values.map(([, v]) => v)) }));
}

const namesOf = (row) => (row.first === row.last ? `rank ${row.first}` : `ranks ${span(row.first, row.last)}`);

function sentence(shown, others, slow) {
  const of = (rows) => rows.flatMap((row) => row.values.map(([, v]) => v));
  const rest = [...shown.filter((row) => !slow(row)), ...others];
  const guilty = shown.filter(slow);
  if (!guilty.length || !rest.length) return "Each mark is one step; the tick is the median. 0 is the median of the other ranks.";
  const largest = Math.max(...of(rest));
  const beyond = of(guilty).filter((v) => v > largest).length;
  return `Each mark is one step. ${guilty.map(namesOf).join(", ")}: ${formatNs(guilty[0].median)} more than the others (median). ` +
    `${beyond} of ${of(guilty).length} of these marks lie beyond every mark of the other ranks, whose largest is ${formatNs(largest)}.`;
}

// The strip: the ranks of the verdict first, then the others with the largest medians.
function strip(data, mode, title) {
  const verdicts = new Map(data.stragglers.map((s) => [s.rank, s]));
  const judged = (verdict) => {
    const ranks = data.stragglers.filter((s) => s.verdict === verdict).map((s) => s.rank);
    return (row) => ranks.some((rank) => row.first <= rank && rank <= row.last);
  };
  const [slow, suspected] = [judged("cause"), judged("undecided")];
  const rows = rowsOfMap(data.heat, mode).sort((a, b) => slow(b) - slow(a) || suspected(b) - suspected(a) || b.median - a.median);
  const [shown, others] = [rows.slice(0, STRIP_ROWS), rows.slice(STRIP_ROWS)];
  const kind = (row) => (slow(row) ? "culprit" : suspected(row) ? "suspect" : "");
  const lines = (row) => [
    namesOf(row) + (slow(row) ? ", a cause" : suspected(row) ? ", undecided" : ""), `median ${formatNs(row.median)}, ${row.values.length} steps`,
    row.first === row.last && verdicts.has(row.first) ? placeOf(verdicts.get(row.first)) : null,
  ].filter((line) => line !== null);
  const mark = (row, kindOf) => ([steps, v]) => ({ x: v, kind: kindOf, lines: () => [`${namesOf(row)}, step ${span(...steps)}`, `${formatNs(v)} above the others`] });
  const one = (row) => ({ label: namesOf(row), brief: span(row.first, row.last), kind: kind(row), points: row.values.map(mark(row, kind(row) || "usual")), lines: () => lines(row) });
  const together = {
    label: `${others.length} others`, kind: "", lines: () => [`${others.length} other ranks`, "each mark is the median of one of them"],
    points: others.map((row) => ({ x: row.median, kind: "usual", lines: () => lines(row) })),
  };
  const { box } = stripChart({ label: `${title}, by rank and step`, xLabel: "above the median of the other ranks, per step", format: formatNs, rows: () => [...shown.map(one), ...(others.length ? [together] : [])] });
  return [
    element("p", { class: "say" }, sentence(shown, others, slow)),
    legend([...(rows.some(slow) ? [["culprit round", "slow rank"]] : []), ...(rows.some(suspected) ? [["suspect round", "undecided rank"]] : []), ["usual round", "other ranks"]]), box,
  ];
}

export function drawLateness(data) {
  const mode = data.heat.range_name === null ? "own" : "range";
  const title = mode === "own" ? "Own work between collectives" : `Time ${data.heat.range_name}`;
  const known = data.heat[mode].some((v) => v !== null);
  return [
    known ? element("h3", {}, title) : null, ...(known ? strip(data, mode, title) : []),
    element("h3", {}, "As a map"), heatMap(data.heat, data.slowRanks),
  ];
}
