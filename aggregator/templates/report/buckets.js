// The phases of every bucket of one step: ready, queued, waiting, transfer; below each bar, the exposed time.
import { element, explain, legend, redraw, select, svg } from "./dom.js";
import { formatBytes, formatNs, formatPercent } from "./format.js";
import { linearTicks, numbers, scale } from "./axes.js";

const BUCKET_PARTS = [["ready", "ready, not enqueued"], ["queued", "queued"], ["wait", "waits for the last rank"], ["transfer", "transfers data"], ["exposed-line", "exposed: not hidden by compute"]];

// Converts a row of the data to named fields, times in ns.
function named(row, unit) {
  const [bucket, rank, bytes, ready, enqueue, start, wait, end, exposed] = row;
  const ns = (v) => (v === null ? null : v * unit);
  return { bucket, rank, bytes, ready: ns(ready), enqueue: ns(enqueue), start: ns(start), wait: ns(wait), end: ns(end), exposed: ns(exposed) };
}

export function bucketWaterfall(buckets, verdictRank) {
  const order = buckets.steps.map((step, i) => i);
  const state = { step: order[Math.floor(order.length / 2)], group: "bucket", rank: "all" };
  const box = element("div", { class: "holder tall scroll", tabindex: "0", role: "group", "aria-label": "Buckets of the selected step" });
  const table = element("div");
  const again = redraw(box, draw);

  function rows() {
    const all = buckets.rows[state.step].map((row) => named(row, buckets.unit_ns));
    const chosen = all.filter((r) => state.rank === "all" || r.rank === -1 || String(r.rank) === state.rank);
    const key = state.group === "bucket" ? (r) => [r.bucket, r.rank] : (r) => [r.rank, r.bucket];
    return chosen.sort((a, b) => key(a)[0] - key(b)[0] || key(a)[1] - key(b)[1]);
  }

  function lines(r) {
    const length = r.end - r.start;
    return [
      `bucket ${r.bucket}, ${r.rank < 0 ? "median over ranks" : "rank " + r.rank}` + (r.bytes === null ? "" : `, ${formatBytes(r.bytes)}`),
      r.ready === null || r.enqueue === null ? null : `enqueued ${formatNs(r.enqueue - r.ready)} after it was ready`,
      r.enqueue === null ? "enqueue time unknown" : `queued ${formatNs(r.start - r.enqueue)}`,
      r.wait === null ? "waiting time unknown" : `waited ${formatNs(r.wait)} for the last rank`,
      `collective ${formatNs(length)}, from ${formatNs(r.start)} to ${formatNs(r.end)}`,
      `exposed ${formatNs(r.exposed)}` + (length > 0 ? `, hidden ${formatPercent(100 * (1 - r.exposed / length))}` : ""),
    ];
  }

  function draw(width) {
    const list = rows();
    const height = list.length > 200 ? 8 : list.length > 60 ? 12 : 20;
    const [left, right, top] = [92, 12, 4];
    const most = Math.max(1, ...list.map((r) => r.end));
    const px = scale(0, most, left, width - right);
    const picture = svg("svg", { class: "picture", width, height: top + list.length * height + 26, role: "list", "aria-label": `Buckets of step ${buckets.steps[state.step]}` });
    for (const tick of linearTicks(0, most, Math.max(2, Math.floor(width / 110)))) {
      picture.append(svg("line", { class: "grid", x1: px(tick), x2: px(tick), y1: 0, y2: top + list.length * height }));
      picture.append(svg("text", { class: "tick", x: px(tick), y: top + list.length * height + 18, "text-anchor": "middle" }, formatNs(tick)));
    }
    list.forEach((r, i) => picture.append(row(r, top + i * height, height, px, left, i, list)));
    box.replaceChildren(picture);
    const head = ["bucket", "rank", "size", "ready", "enqueued", "start", "waits", "end", "exposed"];
    table.replaceChildren(numbers("The numbers behind this picture", head, list.slice(0, 500).map((r) => [r.bucket, r.rank < 0 ? "median" : r.rank,
      formatBytes(r.bytes), formatNs(r.ready), formatNs(r.enqueue), formatNs(r.start), formatNs(r.wait), formatNs(r.end), formatNs(r.exposed)])));
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
    const waited = r.start + (r.wait || 0);
    part("ready", r.ready, r.enqueue);
    part("queued", r.enqueue, r.start);
    part("wait", r.start, Math.min(waited, r.end));
    part("transfer", Math.min(waited, r.end), r.end);
    if (r.exposed > 0) group.append(svg("rect", { class: "mark exposed-line", x: px(r.end - r.exposed), y: y + height - (height > 10 ? 4.5 : 2), width: Math.max(0.5, px(r.end) - px(r.end - r.exposed)), height: height > 10 ? 2.5 : 1.5 }));
    return group;
  }

  const steps = order.map((i) => [i, `${buckets.steps[i]}${buckets.every_rank[i] ? "" : " (medians over ranks)"}`]);
  const ranks = [...new Set(buckets.rows.flatMap((list) => list.map((r) => r[1])))].filter((r) => r >= 0).sort((a, b) => a - b);
  return element("div", {}, [
    element("div", { class: "controls" }, [
      select("Step", steps, state.step, (i) => { state.step = Number(i); again(); }),
      select("Rank", [["all", "all"], ...ranks.map((r) => [String(r), String(r)])], "all", (rank) => { state.rank = rank; again(); }),
      select("Group by", [["bucket", "bucket"], ["rank", "rank"]], "bucket", (group) => { state.group = group; again(); }),
    ]),
    legend(BUCKET_PARTS), element("p", { class: "hint" }, "The length of the exposed time is known, but not its position: the line ends with the bar."),
    box, table,
  ]);
}
