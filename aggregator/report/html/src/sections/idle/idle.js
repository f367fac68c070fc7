// Idle gaps of devices by cause.
import { groupBy } from "../../../templates/report/rows.js";
import { legend } from "../../../templates/report/dom.js";
import { NONE, formatCount, formatNs, formatPercent } from "../../../templates/report/format.js";
import { numbers } from "../../../templates/report/axes.js";
import { stackedBars } from "../../../templates/report/bars.js";
import { briefName, laneKey, laneName } from "../../../templates/report/ranks.js";

// Kind, name and category.
const GAPS = [["host", "host: launched too late", "host_wait"], ["kernel", "kernel: below 30 µs", "kernel_wait"], ["other", "other", "other"]];

export function drawIdle(data) {
  const lanes = groupBy(data.idle_breakdown, laneKey).map((rows) => {
    const of = (category, column) => rows.filter((r) => r.category === category).reduce((all, r) => all + r[column], 0);
    const by = (column) => GAPS.map(([, , category]) => of(category, column));
    return { ...rows[0], gaps: by("gaps"), idle: by("idle_ns"), share: by("share_pct") };
  });
  const { box } = stackedBars({
    label: "Idle gaps by rank and cause", kinds: GAPS, format: formatPercent,
    rows: () => lanes.map((r) => ({ label: laneName(r), brief: briefName(r), values: r.share, marked: data.causes.includes(r.rank),
      lines: (i) => [laneName(r) + `, stream ${r.stream_id === null ? NONE : r.stream_id}`, ...GAPS.map(([, text], k) => (i < 0 || i === k ? `${text}: ${formatPercent(r.share[k])}, ${formatNs(r.idle[k])} in ${formatCount(r.gaps[k])} gaps` : null)).filter(Boolean)] })),
  });
  return [legend(GAPS), box, numbers("The numbers behind this picture", ["", "stream", ...GAPS.map(([kind]) => kind)],
    lanes.map((r) => [laneName(r), r.stream_id === null ? NONE : r.stream_id, ...r.share.map((v, k) => `${formatPercent(v)}: ${formatNs(r.idle[k])} in ${formatCount(r.gaps[k])} gaps`)]))];
}
