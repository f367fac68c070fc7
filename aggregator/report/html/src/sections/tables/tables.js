// Tables of the analysis without a chart.
import { rowsOf } from "../../../templates/report/rows.js";
import { element } from "../../../templates/report/dom.js";
import { formatBytes, formatCount, formatGbs, formatNs, formatNumber, formatPercent } from "../../../templates/report/format.js";
import { table } from "../../../templates/report/table.js";

function unitOf(column, value) {
  if (value === null || typeof value === "boolean") return value === null ? null : value ? "yes" : "no";
  if (typeof value === "string") return value;
  if (column.endsWith("_ns")) return formatNs(value);
  if (column.endsWith("_bytes") || column === "bytes") return formatBytes(value);
  if (column.endsWith("_pct")) return formatPercent(value);
  if (column.endsWith("_gbs")) return formatGbs(value);
  return formatNumber(value);
}

// A table of the analysis. The suffix of a column's name gives its unit.
function extraTable(name, rows) {
  const columns = Object.keys(rows[0]).filter((column) => rows.some((r) => r[column] !== null)).map((column) => ({
    title: column.replace(/_pct$/, " %").replace(/_(ns|gbs)$/, "").replaceAll("_", " "), name: rows.some((r) => typeof r[column] === "string"), value: (r) => r[column], text: (r) => unitOf(column, r[column]),
  }));
  const title = name === "critical_path" ? "per-rank critical path" : name.replaceAll("_", " ");
  const details = element("details", { class: "extra", id: "table-" + name }, element("summary", {}, `${title} (${formatCount(rows.length)} rows)`));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(table(columns, rows, { label: title, search: columns.some((c) => c.name), sort: 0, ascending: true, rows: 20 }));
  });
  return details;
}

export function drawTables(data) {
  return data.extras.map(([name, columns]) => extraTable(name, rowsOf(columns, data.names)));
}
