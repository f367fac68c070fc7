// Sums over an area of the timeline: its rows by lane and name, each with the part of its time that lies in the area.
import { formatCount, formatNs, shortenEnd } from "../../../templates/report/format.js";
import { LANES } from "./timeline_data.js";
import { firstAfter } from "./timeline_pen.js";

// Names of a lane that are listed.
const LISTED = 12;

// An area between two corners: { row, place, time }, of a rank's row, a lane and a time.
export function areaOf(a, b) {
  const before = a.row < b.row || (a.row === b.row && a.place <= b.place);
  const [first, last] = before ? [a, b] : [b, a];
  const oneRow = a.row === b.row;
  return { rows: [first.row, last.row], places: oneRow ? [Math.min(a.place, b.place), Math.max(a.place, b.place)] : null,
    from: Math.min(a.time, b.time), to: Math.max(a.time, b.time) };
}

// The sums of a lane: for each name its rows, their time in the area, and the longest one.
function sumsOfLane(data, step, area, lane) {
  const names = new Map();
  let [rows, time] = [0, 0];
  for (const rank of step.ranks.slice(area.rows[0], area.rows[1] + 1)) {
    const bars = rank.lanes[lane];
    for (let i = firstAfter(bars, area.from); i < bars.length && bars[i].start <= area.to; i++) {
      const bar = bars[i];
      const within = Math.min(bar.end, area.to) - Math.max(bar.start, area.from);
      if (within < 0 || (within === 0 && bar.end > bar.start)) continue;
      const known = names.get(data.title(bar)) || { rows: 0, time: 0, longest: 0 };
      names.set(data.title(bar), { rows: known.rows + bar.rows, time: known.time + within, longest: Math.max(known.longest, within) });
      [rows, time] = [rows + bar.rows, time + within];
    }
  }
  return { rows, time, names: [...names].sort(([a, x], [b, y]) => y.time - x.time || (a < b ? -1 : 1)) };
}

// The title of an area, and its sums as pairs of a term and its text.
export function sumsOf(data, step, area) {
  const places = area.places || [0, data.lanes.length - 1];
  const ranks = step.ranks.slice(area.rows[0], area.rows[1] + 1).map((r) => r.rank);
  const named = ranks.length === 1 ? `rank ${ranks[0]}` : ranks.length > 4 ? `${formatCount(ranks.length)} ranks` : `ranks ${ranks.join(", ")}`;
  const title = `${formatNs(area.to - area.from)} of ${named}`;
  const lines = data.lanes.slice(places[0], places[1] + 1).map((lane) => {
    const { rows, time, names } = sumsOfLane(data, step, area, lane);
    const listed = names.slice(0, LISTED).map(([name, of]) => `${formatNs(of.time)} · ${formatCount(of.rows)} × ${shortenEnd(name, 60)}, at most ${formatNs(of.longest)}`);
    if (names.length > LISTED) listed.push(`${formatCount(names.length - LISTED)} more names`);
    return [LANES[lane], rows ? [`${formatNs(time)} in ${formatCount(rows)} ${rows > 1 ? "rows" : "row"}`, ...listed].join("\n") : null];
  });
  return [title, [["from", `${formatNs(area.from)} to ${formatNs(area.to)} of step ${step.step}`], ...lines.filter(([, text]) => text)]];
}
