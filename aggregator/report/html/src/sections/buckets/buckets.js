// The phases of every bucket of one step: ready, queued, waiting, transfer; below each bar, the exposed time.
import { groupBy } from "../../../templates/report/rows.js";
import { drawing, element, explain, legend, redraw, select, svg } from "../../../templates/report/dom.js";
import { formatBytes, formatNs, formatPercent } from "../../../templates/report/format.js";
import { linearTicks, numbers, scale } from "../../../templates/report/axes.js";

const BUCKET_PARTS = [["ready", "ready, not enqueued"], ["queued", "queued"], ["wait", "waits for the last rank"], ["transfer", "transfers data"], ["exposed-line", "exposed: not hidden by compute"]];

// `rows` by step; their times are in units of `unit` ns.
function bucketWaterfall(rows, unit, verdictRank) {
  const inNs = ([column, value]) => [column, column.endsWith("_ns") && value !== null ? value * unit : value];
  const steps = groupBy(rows.map((r) => Object.fromEntries(Object.entries(r).map(inNs))), (r) => r.step);
  const state = { step: Math.floor(steps.length / 2), group: "bucket", rank: "all" };
  const box = element("div", { class: "holder tall scroll", tabindex: "0", role: "group", "aria-label": "Buckets of the selected step" });
  const table = element("div");
  const again = redraw(box, draw);

  function chosenRows() {
    const chosen = steps[state.step].filter((r) => state.rank === "all" || r.rank === -1 || String(r.rank) === state.rank);
    const key = state.group === "bucket" ? (r) => [r.bucket, r.rank] : (r) => [r.rank, r.bucket];
    return chosen.sort((a, b) => key(a)[0] - key(b)[0] || key(a)[1] - key(b)[1]);
  }

  function lines(r) {
    const length = r.end_ns - r.start_ns;
    return [
      `bucket ${r.bucket}, ${r.rank < 0 ? "median over ranks" : "rank " + r.rank}` + (r.bytes === null ? "" : `, ${formatBytes(r.bytes)}`),
      r.ready_ns === null || r.enqueue_ns === null ? null : `enqueued ${formatNs(r.enqueue_ns - r.ready_ns)} after it was ready`,
      r.enqueue_ns === null ? "enqueue time unknown" : `queued ${formatNs(r.start_ns - r.enqueue_ns)}`,
      r.wait_ns === null ? "waiting time unknown" : `waited ${formatNs(r.wait_ns)} for the last rank`,
      `collective ${formatNs(length)}, from ${formatNs(r.start_ns)} to ${formatNs(r.end_ns)}`,
      `exposed ${formatNs(r.exposed_ns)}` + (length > 0 ? `, hidden ${formatPercent(100 * (1 - r.exposed_ns / length))}` : ""),
    ];
  }

  function draw(width) {
    const list = chosenRows();
    const height = list.length > 200 ? 8 : list.length > 60 ? 12 : 20;
    const [left, right, top] = [92, 12, 4];
    const most = Math.max(1, ...list.map((r) => r.end_ns));
    const px = scale(0, most, left, width - right);
    const picture = drawing(width, top + list.length * height + 26, { role: "list", "aria-label": `Buckets of step ${steps[state.step][0].step}` });
    for (const tick of linearTicks(0, most, Math.max(2, Math.floor(width / 110)))) {
      picture.append(svg("line", { class: "grid", x1: px(tick), x2: px(tick), y1: 0, y2: top + list.length * height }));
      picture.append(svg("text", { class: "tick", x: px(tick), y: top + list.length * height + 18, "text-anchor": "middle" }, formatNs(tick)));
    }
    list.forEach((r, i) => picture.append(row(r, top + i * height, height, px, left, i, list)));
    box.replaceChildren(picture);
    const head = ["bucket", "rank", "size", "ready", "enqueued", "start", "waits", "end", "exposed"];
    table.replaceChildren(numbers("The numbers behind this picture", head, list.slice(0, 500).map((r) => [r.bucket, r.rank < 0 ? "median" : r.rank,
      formatBytes(r.bytes), formatNs(r.ready_ns), formatNs(r.enqueue_ns), formatNs(r.start_ns), formatNs(r.wait_ns), formatNs(r.end_ns), formatNs(r.exposed_ns)])));
  }

  function row(r, y, height, px, left, i, list) {
    const group = svg("g", { role: "listitem", tabindex: list.length > 200 ? null : "0", "aria-label": lines(r).filter(Boolean).join(", "), class: r.rank === verdictRank ? "row marked" : "row" });
    const [outer, inner] = state.group === "bucket" ? [`bucket ${r.bucket}`, r.rank < 0 ? "all" : String(r.rank)] : [r.rank < 0 ? "all" : `rank ${r.rank}`, String(r.bucket)];
    const first = i === 0 || (state.group === "bucket" ? list[i - 1].bucket !== r.bucket : list[i - 1].rank !== r.rank);
    if (first && i) group.append(svg("line", { class: "group", x1: 0, x2: 10000, y1: y - 0.5, y2: y - 0.5 }));
    if (height >= 12 || first) group.append(svg("text", { class: "label", x: left - 8, y: y + height / 2 + 4, "text-anchor": "end" }, first ? `${outer} · ${inner}` : inner));
    const part = (kind, from, to) => {
      if (from === null || to === null || to <= from) return;
      group.append(explain(svg("rect", { class: "mark " + kind, x: px(from), y: y + 1, width: Math.max(0.5, px(to) - px(from)), height: height - (height > 10 ? 6 : 3) }), () => lines(r)));
    };
    const waited = r.start_ns + (r.wait_ns || 0);
    part("ready", r.ready_ns, r.enqueue_ns);
    part("queued", r.enqueue_ns, r.start_ns);
    part("wait", r.start_ns, Math.min(waited, r.end_ns));
    part("transfer", Math.min(waited, r.end_ns), r.end_ns);
    if (r.exposed_ns > 0) group.append(svg("rect", { class: "mark exposed-line", x: px(r.end_ns - r.exposed_ns), y: y + height - (height > 10 ? 4.5 : 2), width: Math.max(0.5, px(r.end_ns) - px(r.end_ns - r.exposed_ns)), height: height > 10 ? 2.5 : 1.5 }));
    return group;
  }

  const options = steps.map(([first], i) => [i, `${first.step}${first.rank < 0 ? " (medians over ranks)" : ""}`]);
  const ranks = [...new Set(rows.map((r) => r.rank))].filter((r) => r >= 0).sort((a, b) => a - b);
  return element("div", {}, [
    element("div", { class: "controls" }, [
      select("Step", options, state.step, (i) => { state.step = Number(i); again(); }),
      select("Rank", [["all", "all"], ...ranks.map((r) => [String(r), String(r)])], "all", (rank) => { state.rank = rank; again(); }),
      select("Group by", [["bucket", "bucket"], ["rank", "rank"]], "bucket", (group) => { state.group = group; again(); }),
    ]),
    legend(BUCKET_PARTS), element("p", { class: "hint" }, "The length of the exposed time is known, but not its position: the line ends with the bar."),
    box, table,
  ]);
}

export function drawBuckets(data) {
  return [bucketWaterfall(data.bucket_timing, data.bucket_unit_ns, data.slowRanks[0])];
}
