// Draws the charts of a run.
import { rowsOf } from "./rows.js";

// `draw` has a function for each section, by its id.
export function drawRun(page, root, draw) {
  const tables = Object.entries(page.tables).map(([name, columns]) => [name, rowsOf(columns, page.names)]);
  const data = { ...page, ...Object.fromEntries(tables), slowRanks: page.verdict === "cause" ? page.causes : [] };
  for (const place of root.querySelectorAll("[data-draw]")) {
    place.append(...draw[place.dataset.draw](data).filter((part) => part !== null));
  }
}
