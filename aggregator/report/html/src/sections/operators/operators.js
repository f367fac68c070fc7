// Operators by name.
import { nameTable } from "../../../templates/report/names.js";

export function drawOperators(data) {
  return [nameTable(data.op_stats, false)];
}
