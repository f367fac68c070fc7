// Kernels by name.
import { nameTable } from "../../../templates/report/names.js";

export function drawKernels(data) {
  return [nameTable(data.kernel_stats, true)];
}
