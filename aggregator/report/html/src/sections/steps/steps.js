// The length of steps: by rank, in parts; and over the steps of the job.
import { groupBy } from "../../../templates/report/rows.js";
import { choice, element, legend, select } from "../../../templates/report/dom.js";
import { formatNs, formatPercent } from "../../../templates/report/format.js";
import { numbers, wholeTicks } from "../../../templates/report/axes.js";
import { stackedBars } from "../../../templates/report/bars.js";
import { lineChart } from "../../../templates/report/lines.js";
import { count, ns, table } from "../../../templates/report/table.js";
import { medianOf } from "../../../templates/report/strip.js";
import { briefName, laneKey, laneName, placeOf } from "../../../templates/report/ranks.js";

// Kind, name and column.
const PARTS = [["compute", "compute", "compute_ns"], ["overlap", "communication under compute", "overlap_ns"], ["wait", "waits for other ranks", "waiting_ns"], ["transfer", "exposed transfer", "transfer_ns"],
  ["whole", "exposed communication, waiting not separated", "undivided_ns"], ["memory", "copies and fills", "memory_ns"], ["idle", "idle", "idle_ns"]];
// Below this number of steps, quartiles and a trend are chance.
const FEW_STEPS = 8;
const WAIT = 2;
const EXPOSED = [2, 3, 4];
const IDLE = 6;
const sum = (values) => values.reduce((a, b) => a + b, 0);
const partsOf = (row) => PARTS.map(([, , column]) => row[column]);
const meanParts = (rows) => PARTS.map(([, , column]) => Math.floor(sum(rows.map((r) => r[column])) / rows.length));

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

// The name of waits: for the slow rank, if most are charged to it.
function nameOfWaits(data) {
  const all = sum(data.stragglers.map((s) => s.caused_wait_ns));
  const cause = data.stragglers.find((s) => data.causes.length === 1 && s.rank === data.causes[0]);
  const share = cause && all > 0 ? cause.caused_wait_ns / all : 0;
  return share >= 0.5 ? `waits for other ranks: ${Math.round(100 * share)} % of all waits are for rank ${cause.rank}` : PARTS[WAIT][1];
}

// What the host of a slow rank does while its device is idle; null if that is not known.
function idleWords(s) {
  const byHost = s && s.verdict === "cause" && s.evidence_range !== null && ["host", "input"].includes(s.reason);
  return byHost ? `host in ${s.evidence_range}` : null;
}

const overlapOf = (v) => (v[1] + sum(EXPOSED.map((k) => v[k])) > 0 ? (100 * v[1]) / (v[1] + sum(EXPOSED.map((k) => v[k]))) : null);

export function drawSteps(data) {
  const { lanes, steps } = breakdownOf(data);
  const whole = lanes.some((lane) => lane.step !== null);
  const straggler = new Map(data.stragglers.map((s) => [s.rank, s]));
  const parts = PARTS.map((part, k) => (k === WAIT ? [part[0], nameOfWaits(data)] : part));
  const state = { sort: "rank", step: "mean" };
  const rowsOfLane = (lane) => (state.step === "mean" ? lane.rows : lane.rows.filter((r) => r.step === Number(state.step)));
  const lines = (lane, v) => (i) => {
    const s = straggler.get(lane.rank);
    const shown = i < 0 ? PARTS.map((_, k) => k).filter((k) => v[k] > 0) : [i];
    return [
      laneName(lane) + (s && s.verdict !== "ok" ? ` (${s.verdict})` : ""), s ? placeOf(s) : null,
      ...shown.map((k) => `${PARTS[k][1]}: ${formatNs(v[k])}, ${formatPercent((100 * v[k]) / (sum(v) || 1))}`), shown.includes(IDLE) ? idleWords(s) : null,
      `step: ${formatNs(sum(v))}` + (state.step === "mean" ? `, mean of ${whole ? lane.rows.length : "all steps"}` : ""),
    ].filter((line) => line !== null);
  };
  const keys = {
    rank: () => 0, step: (r) => -sum(r.values), compute: (r) => -(r.values[0] + r.values[1]), exposed: (r) => -sum(EXPOSED.map((k) => r.values[k])), idle: (r) => -r.values[IDLE],
    verdict: (r) => data.stragglers.indexOf(straggler.get(r.rank)),
  };
  const { box, again } = stackedBars({
    label: "Step time by rank", kinds: PARTS, format: formatNs,
    rows: () => lanes.filter((lane) => rowsOfLane(lane).length).map((lane) => ({ ...lane, values: meanParts(rowsOfLane(lane)) }))
      .sort((x, y) => keys[state.sort](x) - keys[state.sort](y))
      .map((r) => ({ label: laneName(r), brief: briefName(r), marked: data.causes.includes(r.rank), values: r.values, texts: { [IDLE]: idleWords(straggler.get(r.rank)) }, lines: lines(r, r.values) })),
  });
  const sorts = [["rank", "Rank"], ["step", "Step"], ["compute", "Compute"], ["exposed", "Exposed"], ["idle", "Idle"], ["verdict", "Verdict"]];
  const used = parts.filter((_, k) => lanes.some((lane) => lane.mean[k] > 0));
  return [
    element("div", { class: "controls" }, [
      choice("Sort by", sorts, "rank", (sort) => { state.sort = sort; again(); }),
      whole ? select("Step", [["mean", "mean of all"], ...steps.map((s) => [s.step, String(s.step)])], "mean", (step) => { state.step = step; again(); }) : null,
    ]),
    legend(used), box,
    numbers("The numbers behind this picture", ["lane", ...PARTS.map(([, name]) => name), "communication hidden"], lanes.map((lane) => [laneName(lane), ...lane.mean.map(formatNs), formatPercent(overlapOf(lane.mean))])),
    ...(steps.length > 1 ? overSteps(steps) : []),
    ...(data.stragglers.length > 1 ? [element("h3", {}, "Who waited for whom, per step"), stragglerTable(data.stragglers)] : []),
  ];
}

// The length of each step: of the rank that takes longest, and the band of all ranks.
function overSteps(steps) {
  const lengths = steps.map(({ step, rows }) => {
    const all = rows.map((r) => sum(partsOf(r)));
    return { step, least: Math.min(...all), most: Math.max(...all), rank: rows[all.indexOf(Math.max(...all))].rank };
  });
  const most = lengths.map((l) => l.most);
  const sorted = [...most].sort((a, b) => a - b);
  const at = (share) => sorted[Math.floor((sorted.length - 1) * share)];
  const half = Math.floor(most.length / 2);
  const drift = most.length >= FEW_STEPS ? (100 * (medianOf(most.slice(-half)) - medianOf(most.slice(0, half)))) / medianOf(most.slice(0, half)) : null;
  const spread = most.length < FEW_STEPS ? `the steps take ${formatNs(at(0))} to ${formatNs(at(1))}` : `half of the steps take ${formatNs(at(0.25))} to ${formatNs(at(0.75))}`;
  const words = `Median ${formatNs(at(0.5))}; ${spread}.` +
    (drift === null ? "" : ` The later half takes ${formatPercent(Math.abs(drift))} ${drift < 0 ? "less" : "more"} than the earlier one.`);
  const lines = (l) => () => [`step ${l.step}: ${formatNs(l.most)}` + (l.rank < 0 ? ", mean over ranks" : `, longest on rank ${l.rank}`), l.least < l.most ? `shortest: ${formatNs(l.least)}` : null].filter((line) => line !== null);
  return [
    element("h3", {}, "Step time over steps"), element("p", { class: "say" }, words),
    lineChart({
      label: "Step time over steps", xLabel: "step", yLabel: "step time", formatX: (v) => String(Math.round(v * 100) / 100), formatY: formatNs, ticksX: wholeTicks, height: 220, close: true,
      series: [{ name: "length of the step", kind: "line-text", points: lengths.map((l) => [l.step, l.most, lines(l)]), marks: steps.length < 200 }],
      bands: [{ kind: "error", points: lengths.map((l) => [l.step, l.least, l.most]) }],
    }),
  ];
}

// Own work, delays and waits by rank. `rows` are in the order to show: the cause first. If the verdict stands on a range, its
// numbers come before those of all own work.
function stragglerTable(rows) {
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
