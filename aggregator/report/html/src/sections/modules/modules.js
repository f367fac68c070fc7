// The modules as a tree that opens.
import { bdi, element } from "../../../templates/report/dom.js";
import { formatCount, formatNs } from "../../../templates/report/format.js";

const OPEN_LEVELS = 2;

function timesOf(row, hasDevice) {
  const parts = [`host ${formatNs(row.host_total_ns)}, own ${formatNs(row.host_self_ns)}`];
  if (row.backward_host_total_ns > 0) parts.push(`backward ${formatNs(row.backward_host_total_ns)}, own ${formatNs(row.backward_host_self_ns)}`);
  if (hasDevice) parts.push(`device ${formatNs(row.device_total_ns)}, own ${formatNs(row.device_self_ns)}`);
  if (row.backward_device_total_ns > 0) parts.push(`device backward ${formatNs(row.backward_device_total_ns)}, own ${formatNs(row.backward_device_self_ns)}`);
  return ` · ${formatCount(row.calls || row.backward_calls)} calls on ${row.ranks} ranks · ${parts.join(" · ")}`;
}

// Rows stand after their parents; their depth says below which.
function moduleTree(rows) {
  const hasDevice = rows.some((row) => row.device_total_ns > 0 || row.backward_device_total_ns > 0);
  const root = element("div", { class: "modules" });
  const open = [root];
  rows.forEach((row, at) => {
    const text = [bdi(row.module), timesOf(row, hasDevice)];
    const inner = at + 1 < rows.length && rows[at + 1].depth > row.depth;
    const node = inner ? element("details", { open: row.depth < OPEN_LEVELS }, element("summary", {}, text)) : element("div", { class: "leaf" }, text);
    open.length = Math.min(open.length, row.depth + 1);
    open[open.length - 1].append(node);
    if (inner) open.push(node);
  });
  return root;
}

export function drawModules(data) {
  return [moduleTree(data.module_stats)];
}
