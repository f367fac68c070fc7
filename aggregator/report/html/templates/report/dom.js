// Elements, the tooltip, and the live region for screen readers. Text is always set as text, never as markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, set] of Object.entries(value)) node.style.setProperty(key, set);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of [].concat(children === undefined ? [] : children)) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

export function element(name, attributes, children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes, children) {
  return fill(document.createElementNS(SVG_NAMESPACE, name), attributes, children);
}

// A picture of this size in px. Where there is less room, as on paper, it shrinks instead of losing its right end.
export function drawing(width, height, attributes, children) {
  return svg("svg", { class: "picture", width, height, viewBox: `0 0 ${width} ${height}`, ...attributes }, children);
}

// A name from a trace, isolated from the writing direction of the text around it.
export function bdi(text) {
  return element("bdi", {}, text);
}

// The colour of a CSS variable, for canvas.
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

const tip = document.getElementById("tip");
const live = document.getElementById("live");

// Shows the tooltip with lines of text beside a point of the window.
export function showTip(lines, x, y) {
  tip.replaceChildren(...lines.filter((line) => line !== null).map((line, i) => element("div", { class: i ? "" : "first" }, line)));
  tip.hidden = false;
  // Its width depends on the room to its right.
  tip.style.setProperty("left", "0");
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? Math.max(4, x - box.width - 14) : x + 14;
  const top = y + 14 + box.height > innerHeight ? Math.max(4, y - box.height - 14) : y + 14;
  // Of the page, not of the window: the tooltip of a tap moves with what it explains.
  tip.style.setProperty("left", left + scrollX + "px");
  tip.style.setProperty("top", top + scrollY + "px");
}

export function hideTip() {
  tip.hidden = true;
}

// Whether the last press was a finger's. A click says so itself in new browsers only.
let touched = false;
document.addEventListener("pointerdown", (event) => { touched = event.pointerType === "touch"; }, true);
// Before the click reaches what was tapped, which may show its own.
document.addEventListener("click", () => { if (touched) hideTip(); }, true);

// Shows the lines that `at` finds for a pointer event, or none for null: under a mouse while it is there, after a tap until the next
// tap. A finger leaves after every tap, and its click comes last, after the focus has moved.
export function showTipsOf(target, at) {
  const show = (event) => {
    const lines = at(event);
    if (lines) showTip(lines, event.clientX, event.clientY);
    else hideTip();
  };
  target.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") show(event); });
  target.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hideTip(); });
  target.addEventListener("click", (event) => { if (touched) show(event); });
}

// Makes screen readers read lines.
export function say(lines) {
  live.textContent = lines.filter((line) => line !== null).join(", ");
}

// Gives a mark a tooltip for pointer and keyboard focus.
export function explain(mark, lines) {
  showTipsOf(mark, () => lines());
  mark.addEventListener("focus", () => {
    const box = mark.getBoundingClientRect();
    showTip(lines(), box.left + box.width / 2, box.top + box.height / 2);
  });
  mark.addEventListener("blur", hideTip);
  return mark;
}

// A group of buttons of which one is pressed; calls `choose` with its value.
export function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) => element("button", {
    type: "button", "data-value": value, "aria-pressed": String(value === chosen),
    onclick: () => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
      choose(value);
    },
  }, text));
  return element("span", { class: "choice", role: "group", "aria-label": label }, [element("span", { class: "label" }, label), ...buttons]);
}

// A list to choose from; calls `choose` with its value.
export function select(label, options, chosen, choose) {
  const list = element("select", { onchange: () => choose(list.value) },
    options.map(([value, text]) => element("option", { value, selected: String(value) === String(chosen) }, text)));
  return element("label", { class: "select" }, [element("span", { class: "label" }, label), list]);
}

// Draws now and whenever the width or the theme changes.
export function redraw(box, draw) {
  let width = 0;
  const again = () => {
    width = Math.floor(box.clientWidth);
    if (width > 0) draw(width);
  };
  new ResizeObserver(() => {
    if (Math.floor(box.clientWidth) !== width) again();
  }).observe(box);
  document.addEventListener("themechange", again);
  again();
  return again;
}

// Legends are folded where the page is as narrow as a phone.
const narrow = matchMedia("(max-width: 40rem)");

// A legend of colours. An item is [class, text], or [class, text, colour, title] for a colour that is no class.
export function legend(items) {
  const list = element("ul", { class: "legend" }, items.map(([kind, text, paint, title]) =>
    element("li", { title }, [element("span", { class: "swatch " + kind, "aria-hidden": "true", style: paint && { "background-color": paint } }), bdi(text)])));
  const folded = element("details", { class: "legends", open: !narrow.matches }, [element("summary", {}, "Colours"), list]);
  narrow.addEventListener("change", () => { folded.open = !narrow.matches; });
  return folded;
}
