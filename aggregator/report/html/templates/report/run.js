// Draws the charts of a run.
import { rowsOf } from "./rows.js";
import { timelineOf } from "./timeline.js";
import { moduleTree } from "./modules.js";
import { bucketWaterfall } from "./buckets.js";
import { extraTable, nameTable } from "./tables.js";
import { drawLateness } from "./proof.js";
import { drawRoles } from "./roles.js";
import { drawSteps } from "./steps.js";
import { drawClocks, drawCollectives, drawSkew } from "./collectives.js";
import { drawIdle, drawMemory, drawRoofline } from "./devices.js";

// Draws the charts of a run into its page.
export function drawRun(page, root) {
  const tables = Object.entries(page.tables).map(([name, columns]) => [name, rowsOf(columns, page.names)]);
  const data = { ...page, ...Object.fromEntries(tables) };
  const ranks = data.verdict === "cause" ? data.causes : [];
  const draw = {
    steps: () => drawSteps(data), lateness: () => drawLateness(data, ranks), roles: () => drawRoles(data), timeline: () => [timelineOf(data.timeline, data.names, data.stragglers.filter((s) => ranks.includes(s.rank)))],
    buckets: () => [bucketWaterfall(data.bucket_timing, data.bucket_unit_ns, ranks[0])], collectives: () => drawCollectives(data),
    skew: () => drawSkew(data), clocks: () => drawClocks(data), kernels: () => [nameTable(data.kernel_stats, true)],
    operators: () => [nameTable(data.op_stats, false)], modules: () => [moduleTree(data.module_stats)], idle: () => drawIdle(data), memory: () => drawMemory(data),
    roofline: () => drawRoofline(data), tables: () => data.extras.map(([name, columns]) => extraTable(name, rowsOf(columns, data.names))),
  };
  for (const place of root.querySelectorAll("[data-draw]")) {
    place.append(...draw[place.dataset.draw]().filter((part) => part !== null));
  }
}
