// Tables with sorting and search.
import { bdi, element, say } from "./dom.js";
import { NONE, formatCount, formatNs } from "./format.js";

const PAGE = 25;

// Names of at least this length are folded to two lines.
const LONG = 90;

// A long name that unfolds on click.
function folded(text) {
  const button = element("button", { type: "button", class: "folded", "aria-expanded": "false", title: "Show the whole name", onclick: () => {
    button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") === "false"));
  } }, bdi(text));
  return button;
}

// `columns`: { title, value(row), text(row), name: whether it is a name, word: one that does not break, hint }. `options`: { label, search, sort: column,
// ascending, rows: rows shown at first }.
export function table(columns, rows, options) {
  const state = { sort: options.sort || 0, up: Boolean(options.ascending), words: [], shown: options.rows || PAGE };
  const heads = columns.map((column, i) => {
    const button = element("button", { type: "button", title: column.hint, onclick: () => sortBy(i) }, column.title);
    return element("th", { scope: "col", class: column.name ? (column.word ? "name word" : "name") : "number" }, button);
  });
  const body = element("tbody");
  const count = element("p", { class: "count", "aria-live": "polite" });
  const more = element("button", { type: "button", class: "more", onclick: () => { state.shown *= 4; draw(); } });

  function sortBy(i) {
    state.up = state.sort === i ? !state.up : Boolean(columns[i].name);
    state.sort = i;
    draw();
    say(["sorted by " + columns[i].title, state.up ? "ascending" : "descending"]);
  }

  function compare(a, b) {
    const column = columns[state.sort];
    const [x, y] = [column.value(a), column.value(b)];
    // Unknown values come last in both directions.
    if (x === null || x === undefined || y === null || y === undefined) {
      return (x === null || x === undefined ? 1 : 0) - (y === null || y === undefined ? 1 : 0);
    }
    const order = typeof x === "string" ? x.localeCompare(y) : x - y;
    return state.up ? order : -order;
  }

  function cell(column, row) {
    const text = column.text ? column.text(row) : column.value(row);
    if (column.draw) return element("td", { class: "drawn" }, column.draw(row));
    const shown = text === null || text === undefined || text === "" ? NONE : String(text);
    if (!column.name) return element("td", { class: "number" }, shown);
    return element("td", { class: column.word ? "name word" : "name" }, shown.length > LONG ? folded(shown) : bdi(shown));
  }

  function draw() {
    const found = rows.filter((row) => {
      const text = columns.filter((c) => c.name).map((c) => String(c.text ? c.text(row) : c.value(row))).join(" ").toLowerCase();
      return state.words.every((word) => text.includes(word));
    });
    found.sort(compare);
    heads.forEach((head, i) => {
      if (i === state.sort) head.setAttribute("aria-sort", state.up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(...found.slice(0, state.shown).map((row) => element("tr", { class: options.mark && options.mark(row) }, columns.map((column) => cell(column, row)))));
    const rest = found.length - Math.min(found.length, state.shown);
    more.hidden = rest <= 0;
    more.textContent = `Show more (${formatCount(rest)} not shown)`;
    count.textContent = found.length === rows.length ? `${formatCount(rows.length)} rows` : `${formatCount(found.length)} of ${formatCount(rows.length)} rows`;
  }

  const parts = [];
  if (options.search) {
    const field = element("input", {
      type: "search", placeholder: "Search names", "aria-label": "Search " + options.label,
      oninput: () => { state.words = field.value.toLowerCase().split(/\s+/).filter(Boolean); draw(); },
    });
    parts.push(element("div", { class: "controls" }, [field, count]));
  }
  const head = element("thead", {}, element("tr", {}, heads));
  parts.push(element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.label },
    element("table", { class: "sortable", "aria-label": options.label }, [head, body])));
  parts.push(more);
  draw();
  return element("div", { class: "tabled" }, parts);
}

// Columns of times and of counts.
export const ns = (title, key, hint) => ({ title, hint, value: (r) => r[key], text: (r) => formatNs(r[key]) });
export const count = (title, key, hint) => ({ title, hint, value: (r) => r[key], text: (r) => formatCount(r[key]) });
