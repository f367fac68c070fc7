// Arrows from what a bar followed: from the launch on the host to a kernel or copy, and from the last rank of a collective to the
// ranks that wait for it.
import { COMMUNICATION, COMPUTE, OPERATORS, RANGES } from "./timeline_data.js";

// Arrows of one bar that are drawn. More would be one colour.
const MOST_ARROWS = 400;
const HEAD = 5;

// For each step, the bars of each collective by row, in order. The end of several rows that are drawn as one is not that of their collective.
const barsOfCalls = new WeakMap();

function barsOfCall(step, call) {
  let calls = barsOfCalls.get(step);
  if (!calls) {
    calls = new Map();
    step.ranks.forEach((rank, row) => {
      for (const bar of rank.lanes[COMMUNICATION]) {
        if (bar.call === null || bar.rows > 1) continue;
        const rows = calls.get(bar.call) || calls.set(bar.call, new Map()).get(bar.call);
        rows.set(row, [...(rows.get(row) || []), bar]);
      }
    });
    barsOfCalls.set(step, calls);
  }
  return calls.get(call) || new Map();
}

// The bar of a call on the last rank to come shows when it came: there, its first bar begins.
function ofCollective(data, step, row, bar) {
  const rows = barsOfCall(step, bar.call);
  const last = step.ranks.findIndex((rank) => rank.rank === data.call(bar.call).last);
  if (!rows.has(last)) return [];
  const from = { row: last, lane: COMMUNICATION, time: rows.get(last)[0].start };
  const waiting = [...rows].filter(([of]) => of !== last && (row === last || of === row));
  return waiting.flatMap(([of, bars]) => bars.filter((waits) => waits.does === 0).map((waits) => ({ from, to: { row: of, lane: COMMUNICATION, time: waits.end } })));
}

// The launch of device work, on the lane of the host that is drawn. Of bars that are drawn as one, no launch is known.
function ofLaunch(data, row, bar) {
  if (bar.delay === null || bar.rows > 1) return [];
  const lane = data.lanes.includes(OPERATORS) ? OPERATORS : RANGES;
  return [{ from: { row, lane, time: bar.start - bar.delay }, to: { row, lane: COMPUTE, time: bar.start } }];
}

// The arrows of a bar on a lane of the rank in a row: to what it waited for, and of the host, to what was launched during it.
export function arrowsOf(data, step, { row, lane, bar }) {
  if (lane === COMMUNICATION) return bar.call === null ? [] : ofCollective(data, step, row, bar).slice(0, MOST_ARROWS);
  if (lane === COMPUTE) return ofLaunch(data, row, bar);
  const launched = step.ranks[row].lanes[COMPUTE].flatMap((work) => ofLaunch(data, row, work));
  return launched.filter(({ from }) => from.lane === lane && bar.start <= from.time && from.time <= bar.end).slice(0, MOST_ARROWS);
}

export function drawArrows({ pen, paint, px, rowTop, sizes, lanes, arrows }) {
  const y = ({ row, lane }) => rowTop(row) + (lanes.indexOf(lane) + 0.5) * sizes.lane;
  pen.strokeStyle = pen.fillStyle = paint.focus;
  pen.lineWidth = 1.5;
  for (const { from, to } of arrows) {
    const [x0, y0, x1, y1] = [px(from.time), y(from), px(to.time), y(to)];
    const angle = Math.atan2(y1 - y0, x1 - x0);
    const wing = (turn) => pen.lineTo(x1 - HEAD * Math.cos(angle + turn), y1 - HEAD * Math.sin(angle + turn));
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x1, y1);
    wing(0.5);
    wing(-0.5);
    pen.fill();
  }
  pen.lineWidth = 1;
}
