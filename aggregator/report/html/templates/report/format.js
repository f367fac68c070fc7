// Numbers as the terminal prints them: three digits with a suitable unit.

const TIME_UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const SIZE_UNITS = [[1099511627776, "TiB"], [1073741824, "GiB"], [1048576, "MiB"], [1024, "KiB"], [1, "B"]];
const RATE_UNITS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

function digits(value, whole) {
  const size = Math.abs(value);
  if (whole || size >= 100 || value === 0) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : size >= 0.095 ? 2 : 3);
}

function scaled(value, units, least) {
  const unit = units.find(([scale]) => Math.abs(value) >= scale) || units[units.length - 1];
  return digits(value / unit[0], unit[0] === 1 && least) + " " + unit[1];
}

// The sign for an unknown value.
export const NONE = "–";

export function formatNs(ns) {
  return ns === null || ns === undefined ? NONE : scaled(ns, TIME_UNITS, true);
}

export function formatBytes(bytes) {
  return bytes === null || bytes === undefined ? NONE : scaled(bytes, SIZE_UNITS, true);
}

export function formatCount(n) {
  if (n === null || n === undefined) return NONE;
  return String(Math.round(n)).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

export function formatPercent(pct) {
  return pct === null || pct === undefined ? NONE : pct.toFixed(Math.abs(pct) < 9.95 ? 1 : 0) + " %";
}

// A rate in GB/s, with a suitable unit.
export function formatGbs(gbs) {
  return gbs === null || gbs === undefined ? NONE : scaled(gbs * 1e9, RATE_UNITS) + "B/s";
}

export function formatFlops(flops) {
  return flops === null || flops === undefined ? NONE : scaled(flops, RATE_UNITS) + "FLOP/s";
}

export function formatNumber(value) {
  if (value === null || value === undefined) return NONE;
  if (Number.isInteger(value)) return formatCount(value);
  return Math.abs(value) >= 0.001 ? digits(value) : value.toPrecision(2);
}

// Shortens text to a number of letters by removing its middle, because the ends of names distinguish them.
export function shorten(text, letters) {
  const all = Array.from(text);
  if (all.length <= letters) return text;
  const tail = Math.floor((letters - 1) / 2);
  return all.slice(0, letters - 1 - tail).join("") + "…" + all.slice(all.length - tail).join("");
}

// Shortens text to a number of letters by removing its end.
export function shortenEnd(text, letters) {
  const all = Array.from(text);
  return all.length <= letters ? text : all.slice(0, letters - 1).join("") + "…";
}

// `0–3` or `5`.
export function span(first, last) {
  return first === last ? String(first) : first + "–" + last;
}
