// The search for names in the timeline: bars whose name contains the text stay bright, the others fade.
import { element, say } from "../../../templates/report/dom.js";
import { formatCount } from "../../../templates/report/format.js";
import { tipLines } from "./timeline_details.js";

// `stepOf` returns the step, `reveal` gives a bar the focus of the keyboard, `again` draws.
export function searchField(data, stepOf, reveal, again) {
  let hits = [];
  let set = null;
  let at = -1;
  const field = element("input", { type: "search", placeholder: "Find a name in this step", title: "Merged bars are found by the name of their longest row", "aria-label": "Find a name in this step. Enter goes to the next match, Shift and Enter to the one before" });
  const count = element("span", { class: "count", role: "status" });
  const arrow = (text, label, by) => element("button", { type: "button", "aria-label": label, title: label, onclick: () => next(by) }, text);

  function find() {
    const wanted = field.value.trim().toLowerCase();
    [hits, at] = [[], -1];
    if (wanted) {
      stepOf().ranks.forEach((rank, row) => {
        data.lanes.forEach((lane, place) => rank.lanes[lane].forEach((bar, index) => {
          if (data.title(bar).toLowerCase().includes(wanted)) hits.push({ rank, row, lane, place, index, bar });
        }));
      });
    }
    set = wanted ? new Set(hits.map((hit) => hit.bar)) : null;
    tell();
    again();
  }

  function tell() {
    const bars = `${formatCount(hits.length)} ${hits.length === 1 ? "bar" : "bars"}`;
    count.textContent = set === null ? "" : at < 0 ? bars : `${at + 1} of ${bars}`;
  }

  function next(by) {
    if (!hits.length) return;
    at = at < 0 ? (by > 0 ? 0 : hits.length - 1) : (at + by + hits.length) % hits.length;
    const hit = hits[at];
    tell();
    reveal({ row: hit.row, lane: hit.place, bar: hit.index });
    say([`${at + 1} of ${hits.length}`, ...tipLines(data, hit)]);
  }

  field.addEventListener("input", find);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && field.value) {
      field.value = "";
      find();
    } else return;
    event.preventDefault();
  });
  return {
    box: element("span", { class: "choice search" }, [field, arrow("↑", "Match before", -1), arrow("↓", "Next match", 1), count]),
    matches: () => set, next, again: find, focus: () => field.focus(),
  };
}
