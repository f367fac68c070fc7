// What the page knows of one bar of the timeline, as a pane under the chart.
import { bdi, element, say } from "../../../templates/report/dom.js";
import { NONE, formatBytes, formatCount, formatFlops, formatGbs, formatNs, shortenEnd } from "../../../templates/report/format.js";
import { DOES, ON_PATH, waitsForDevice } from "./timeline_data.js";

const PYTHON = "python_function";
const HOST_CALLS = ["cuda_runtime", "cuda_driver"];

// The descriptions around one, from the inside outwards.
function around(data, description) {
  const found = [];
  for (let at = description.inside; at !== null; at = found[found.length - 1].inside) found.push(data.describe(at));
  return found;
}

// A time with as many digits as tell the ends of a bar of this length apart.
function precise(t, length) {
  if (t < 1e6) return formatNs(t);
  return (t / 1e6).toFixed(Math.max(1, Math.min(6, 1 - Math.floor(Math.log10(Math.max(1, length) / 1e6))))) + " ms";
}

// When a bar is, and how long.
function timeOf({ start, end }) {
  return `${formatNs(end - start)}, from ${precise(start, end - start)} to ${precise(end, end - start)}`;
}

// The words for what a bar does.
function doing(data, lane, bar) {
  if (lane === 3) return DOES[bar.does][1];
  const of = data.describe(bar.of);
  if (waitsForDevice(of, lane)) return "host call that waits for the device";
  return ["named range", "operator", { gpu_memcpy: "copy", gpu_memset: "fill" }[of.kind] || "kernel"][lane];
}

// A JSON list in words; a tensor has no value, and its place is kept.
function list(text) {
  return text === null ? null : text.replaceAll('""', NONE).replace(/^\[|\]$/g, "").replaceAll('"', "");
}

// The short lines of a tooltip.
export function tipLines(data, { rank, lane, bar, piece }) {
  return [
    shortenEnd(data.title(bar), 120) + (bar.rows > 1 ? ` and ${formatCount(bar.rows - 1)} more` : ""), `rank ${rank.rank}, ${doing(data, lane, bar)}`,
    timeOf(bar),
    bar.rows > 1 ? `${formatCount(bar.rows)} short rows drawn as one` : null,
    piece ? `on the critical path of the job for ${formatNs(piece.end - piece.start)}: ${ON_PATH[piece.kind]}` : null,
  ];
}

function argumentsOf(more) {
  const parts = [
    ["floating-point operations", more.flops, formatFlops], ["moves", more.bytes, formatBytes], ["stream", more.stream, String], ["grid", more.blocks, (n) => `${formatCount(n)} blocks`],
    ["block", more.block_threads, (n) => `${formatCount(n)} threads`], ["registers", more.registers, (n) => `${n} a thread`],
    ["shared memory", more.shared_mem_bytes, (n) => `${formatBytes(n)} a block`], ["occupancy", more.occupancy_pct, (n) => `${n} % (estimated)`]];
  const known = parts.filter(([, value]) => value !== undefined && value !== null);
  return known.map(([name, value, format]) => `${name} ${name.startsWith("floating") ? format(value).replace("FLOP/s", "FLOP") : format(value)}`).join(", ");
}

function callLines(data, call) {
  if (!call) return [["collective", "not matched with other ranks, so arrivals and bandwidth are unknown"]];
  const name = (number) => (number === null ? NONE : data.names[number]);
  const error = call.error_ns === null ? "clock error unknown" : `clock error ± ${formatNs(call.error_ns)}`;
  const arrivals = [];
  for (let i = 0; i + 1 < call.arrivals.length; i += 2) arrivals.push([call.arrivals[i], call.arrivals[i + 1]]);
  arrivals.sort((a, b) => b[1] - a[1]);
  const seen = call.expected === null ? "" : ` of ${call.expected} ranks`;
  return [
    ["collective", [name(call.op), call.bytes === null ? "size unknown" : formatBytes(call.bytes), call.seq === null ? null : `number ${call.seq}`,
      call.bucket === null ? null : `bucket ${call.bucket}`, call.communicator === null ? null : `communicator ${name(call.communicator)}`].filter(Boolean).join(", ")],
    ["transfer", call.transfer_ns === null ? "unknown: ranks are missing, it is one-sided, or shorter than the clock error"
      : `${formatNs(call.transfer_ns)}, bus bandwidth ${formatGbs(call.busbw_gbs)} (${error})`],
    ["arrivals" + seen, arrivals.length ? arrivals.map(([rank, after], i) => `rank ${rank} ${after ? "+" + formatNs(after) : "first"}${i ? "" : " (last)"}`).join(", ") + `; ${error}`
      : `the last was rank ${call.last}; the page has no room for the others`],
  ];
}

// The details of a bar: pairs of a term and its text.
export function detailsOf(data, step, { rank, lane, bar, piece }) {
  const of = data.describe(bar.of);
  const outside = around(data, of);
  const operators = outside.filter((d) => d.kind !== PYTHON && !HOST_CALLS.includes(d.kind));
  const python = outside.filter((d) => d.kind === PYTHON).map((d) => d.name);
  const onDevice = of.kind === "kernel" || of.kind === "gpu_memcpy" || of.kind === "gpu_memset";
  const launch = onDevice ? outside.find((d) => HOST_CALLS.includes(d.kind)) : null;
  // Kernels have neither shapes nor a stack: those of their operator are theirs.
  const source = onDevice ? [of, ...operators] : [of];
  const first = (key) => source.map((d) => d.more[key]).find((value) => value !== undefined);
  const text = (number) => (number === undefined ? null : data.names[number]);
  const stack = first("stack") ? first("stack").map((frame) => data.names[frame]).reverse() : python;
  const lines = [
    ["what", doing(data, lane, bar)],
    ["rank", `${rank.rank}${rank.identity ? " · " + rank.identity : ""}`],
    ["time", `${timeOf(bar)} of step ${step.step}`],
    bar.rows > 1 ? ["merged", `${formatCount(bar.rows)} short rows drawn as one; all below is of the longest`] : null,
    piece ? ["critical path", `of the job, in a piece of ${formatNs(piece.end - piece.start)}: ${ON_PATH[piece.kind]}`] : null,
    ...(lane === 3 ? callLines(data, data.call(bar.call)) : []),
    lane === 3 && of.name !== data.title(bar) ? ["row", of.name] : null,
    ["arguments", argumentsOf(of.more)],
    ["shapes", text(first("shapes")) || (of.kind === "cpu_op" ? "not recorded; torch.profiler records them with record_shapes=True" : null)],
    ["types", list(text(first("types")))],
    ["values", list(text(first("values")))],
    ["module", text(first("module"))],
    onDevice ? ["launch", launch ? launch.name + (bar.delay === null ? "" : `, ${formatNs(bar.delay)} before it began, at ${precise(bar.start - bar.delay, bar.delay)}`) : "not recorded"] : null,
    operators.length ? [onDevice ? "launched by" : "inside", operators.map((d) => d.name).join(" ‹ ")] : null,
    stack.length ? ["Python stack", stack.join("\n")] : null,
  ];
  return lines.filter((line) => line !== null && line[1]);
}

// The pane. `open` shows details and moves the focus there; Escape or its button closes it and calls `closed`.
export function detailsPane(closed) {
  const title = element("h3", { id: "bar-title" });
  const list = element("dl", {});
  const close = () => {
    if (pane.hidden) return;
    pane.hidden = true;
    closed();
  };
  const pane = element("section", { class: "bar-details", tabindex: "-1", role: "dialog", "aria-labelledby": "bar-title", hidden: true, onkeydown: (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  } }, [element("div", { class: "bar-head" }, [title, element("button", { type: "button", onclick: close }, "Close")]), list]);
  const open = (name, lines) => {
    title.replaceChildren(bdi(name));
    list.replaceChildren(...lines.map(([term, text]) => element("div", {}, [element("dt", {}, term), element("dd", {}, bdi(text))])));
    pane.hidden = false;
    pane.scrollTop = 0;
    pane.focus({ preventScroll: true });
    say([name, ...lines.map(([term, text]) => `${term}: ${text}`)]);
  };
  return { pane, open, close };
}
