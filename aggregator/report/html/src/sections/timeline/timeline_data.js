// The bars of the timeline, decoded from the numbers of the page one step at a time.

export const LANES = ["ranges", "operators", "compute", "communication"];
export const [RANGES, OPERATORS, COMPUTE, COMMUNICATION] = [0, 1, 2, 3];

// The activities of bars of communication, by number: colour and words.
export const DOES = [["wait", "waits for another rank"], ["transfer", "transfers data"], ["whole", "in a collective, waiting not separated"]];

// The pieces of the critical path, by number: words.
export const ON_PATH = ["works", "transfers data", "not explained"];

// The colour of the k-th name. No two names share one, and the first ones differ most. Red hues are left out: the range of a
// cause is red.
export function rangeColour(k) {
  const hue = 40 + ((k * 137.508) % 290);
  return `hsl(${hue.toFixed(2)}, ${[32, 40, 24][k % 3]}%, ${[40, 31, 46][k % 3]}%)`;
}

// Bars of a lane, in ns: `of` is the number of the description, `delay` the time since the launch, `call` the collective. Both may be null.
function decodeLane(numbers, unit, lane) {
  const bars = [];
  const width = lane < COMPUTE ? 4 : 5;
  let at = 0;
  for (let i = 0; i + width <= numbers.length; i += width) {
    const start = at + numbers[i];
    at = start + numbers[i + 1];
    const last = width > 4 ? numbers[i + 4] : 0;
    const communicates = lane === COMMUNICATION;
    bars.push({ start: start * unit, end: at * unit, of: numbers[i + 2], rows: numbers[i + 3],
      delay: lane === COMPUTE && last > 0 ? last - 1 : null,
      does: communicates ? last % 3 : null, call: communicates && last > 2 ? Math.floor(last / 3) - 1 : null });
  }
  return bars;
}

// The timelines of a page. `at` gives a step: its ranks with their bars, the critical path, and the names of ranges with their times.
export function timelineData(page, names) {
  const identities = new Map(page.identities);
  const steps = new Map(page.steps.map((step) => [step.step, step]));
  const described = [];
  const describe = (number) => {
    if (!described[number]) {
      const [name, kind, inside, more] = page.descriptions[number];
      described[number] = { name: names[name], kind: kind === null ? null : names[kind], inside: inside ? inside - 1 : null, more: more || {} };
    }
    return described[number];
  };
  const call = (number) => number === null ? null : page.calls[number];
  // What stands on a bar.
  const title = (bar) => {
    const to = call(bar.call);
    if (bar.does === null || !to) return names[page.descriptions[bar.of][0]];
    return bar.does === 0 ? `waits for rank ${to.last}: ${names[to.op]}` : names[to.op];
  };
  const decode = (step) => {
    const unit = step.unit_ns;
    const ranks = step.ranks.map((r) => ({ rank: r.rank, identity: identities.get(r.rank) || "",
      window: r.window.map((t) => t * unit), lanes: r.lanes.map((lane, i) => decodeLane(lane, unit, i)) }));
    const path = [];
    for (let i = 0; i + 3 < step.path.length; i += 4) {
      const [row, kind, start, length] = step.path.slice(i, i + 4);
      path.push({ row, kind, start: start * unit, end: (start + length) * unit });
    }
    return { step: step.step, span: step.span_ns, ranks, path };
  };
  // Lanes that have a bar in some step. The others are not drawn.
  const lanes = LANES.map((_, lane) => lane).filter((lane) => page.steps.some((step) => step.ranks.some((r) => r.lanes[lane].length)));
  let latest = null;
  const at = (number) => {
    if (!latest || latest.step !== number) latest = decode(steps.get(number));
    return latest;
  };
  // The names of ranges with their times over all ranks and steps, the longest first: a name has one colour in all steps.
  const ranges = new Map();
  for (const step of page.steps) {
    for (const r of step.ranks) {
      for (const bar of decodeLane(r.lanes[RANGES], step.unit_ns, RANGES)) {
        const name = names[page.descriptions[bar.of][0]];
        ranges.set(name, (ranges.get(name) || 0) + bar.end - bar.start);
      }
    }
  }
  const longest = [...ranges].sort((a, b) => b[1] - a[1]);
  return { steps: [...steps.keys()], chosen: steps.has(page.chosen) ? page.chosen : page.steps[0].step, typical: page.typical, at, describe, call, title, lanes, ranges: longest, names,
    hasDevice: lanes.includes(COMPUTE), colours: new Map(longest.map(([name], k) => [name, rangeColour(k)])) };
}

// Whether a bar is a call of the host that waits for the device.
export function waitsForDevice(description, lane) {
  return lane === OPERATORS && description.kind !== null && description.kind !== "cpu_op";
}
