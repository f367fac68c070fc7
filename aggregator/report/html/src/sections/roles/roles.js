// The ranks of a job by their role: stages of the pipeline below each other, positions in other communicators beside each other.
import { choice, element, explain, say } from "../../../templates/report/dom.js";
import { formatNs } from "../../../templates/report/format.js";
import { heatScale } from "../../../templates/report/heat.js";
import { placeOf } from "../../../templates/report/ranks.js";

// What a cell shows: key, words, value.
const COSTS = [
  ["excess", "Longer than the other ranks", (s) => (s.stands_on === "range" || s.evidence_excess_ns !== null ? s.evidence_excess_ns : s.own_excess_ns)],
  ["delay", "Delay of a step", (s) => s.step_delay_ns],
  ["own", "All own work", (s) => s.own_excess_ns],
];

export function drawRoles(data) {
  const { rows, columns, cells, row_name: rowName, column_name: columnName } = data.roles;
  const of = new Map(data.stragglers.map((s) => [s.rank, s]));
  const place = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Cost by role" });
  const state = { cost: "excess" };

  function cell(rank, colours, most) {
    const s = of.get(rank);
    const value = s ? COSTS.find(([key]) => key === state.cost)[2](s) : null;
    const cause = s && s.verdict === "cause";
    const lines = () => [
      `rank ${rank}` + (s ? `: ${s.verdict}` : ""), s ? placeOf(s) : null,
      ...(s ? [`own work ${formatNs(s.own_excess_ns)} above the others`, `delays a step by ${formatNs(s.step_delay_ns)}`, `waits of others for it: ${formatNs(s.caused_wait_ns)} per step`, s.stands_on === "range" ? `in ${s.evidence_range === null ? "no recorded range" : s.evidence_range}` : null] : ["not compared"]),
    ].filter((line) => line !== null);
    const share = value === null ? 0 : Math.max(0, value) / most;
    const box = element("button", { type: "button", class: "role" + (cause ? " cause" : ""), style: { "background-color": colours(share), color: share > 0.45 ? "var(--on-heat)" : "var(--text)" }, onclick: () => say(lines()) },
      [element("span", { class: "who" }, `rank ${rank}` + (cause ? " ◀ slow" : "")), element("span", {}, formatNs(value))]);
    return element("td", {}, explain(box, lines));
  }

  function draw() {
    const value = COSTS.find(([key]) => key === state.cost)[2];
    const most = Math.max(1, ...data.stragglers.map((s) => value(s) || 0));
    const colours = heatScale();
    const head = element("tr", {}, [element("th", { scope: "col" }, `${rowName} ↓  ${columnName} →`), ...columns.map((name) => element("th", { scope: "col" }, name))]);
    const body = rows.map((name, r) => element("tr", {}, [element("th", { scope: "row" }, name), ...columns.map((_, c) => {
      const found = cells.find((one) => one[0] === r && one[1] === c);
      return found ? cell(found[2], colours, most) : element("td", {});
    })]));
    place.replaceChildren(element("table", { class: "roles" }, [element("thead", {}, head), element("tbody", {}, body)]));
  }

  document.addEventListener("themechange", draw);
  draw();
  return [element("div", { class: "controls" }, choice("Show", COSTS.map(([key, words]) => [key, words]), state.cost, (cost) => { state.cost = cost; draw(); })), place];
}
