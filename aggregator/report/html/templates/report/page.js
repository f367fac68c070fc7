// The page: theme, tabs, and the content of the tabs.
import { drawDiff } from "./diff.js";
import { drawRun } from "./run.js";

const THEMES = ["system", "light", "dark"];
const themeButton = document.getElementById("theme");

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  themeButton.textContent = "Theme: " + theme;
  document.dispatchEvent(new Event("themechange"));
}

themeButton.addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || "system";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
// Paper is light, whatever the theme.
for (const media of ["(prefers-color-scheme: dark)", "print"]) {
  matchMedia(media).addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
}

function showTab(tab, tabs) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  listContents();
}

// The contents as a list to choose from, for windows without room for the column of links.
const jump = document.getElementById("jump");

function listContents() {
  const links = [...document.querySelectorAll(".contents a")].filter((link) => !link.closest("[hidden]"));
  const entry = (text, value) => Object.assign(document.createElement("option"), { textContent: text, value });
  jump.replaceChildren(entry("Contents", ""), ...links.map((link) => entry(link.textContent + (link.classList.contains("empty") ? " · no data" : ""), link.hash.slice(1))));
}

jump.addEventListener("change", () => {
  const section = document.getElementById(jump.value);
  jump.value = "";
  if (section) section.scrollIntoView();
});

function wireTabs() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, i) => {
    tab.tabIndex = i ? -1 : 0;
    tab.addEventListener("click", () => showTab(tab, tabs));
    tab.addEventListener("keydown", (event) => {
      const next = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      const chosen = tabs[(next + tabs.length) % tabs.length];
      chosen.focus();
      showTab(chosen, tabs);
    });
  });
}

// Print everything, including folded parts.
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details.numbers, details.legends")) details.open = true;
});

// Text between backticks is code.
function markCode() {
  for (const node of document.querySelectorAll(".sentence, .answers bdi, .sides bdi, .lead, .note, .absent, .uncovered bdi, .finding bdi, .do, .evidence bdi")) {
    const words = node.textContent.split("`");
    if (node.childElementCount || words.length < 3) continue;
    node.replaceChildren(...words.map((word, i) => {
      if (i % 2 === 0 || i === words.length - 1) return i % 2 ? "`" + word : word;
      const code = document.createElement("code");
      code.textContent = word;
      return code;
    }));
  }
}

// Called at the end of the script, which lists the functions that draw the sections of a run.
export function drawPage(sections) {
  wireTabs();
  listContents();
  markCode();
  const runData = document.getElementById("run-data");
  if (runData) drawRun(JSON.parse(runData.textContent), document.getElementById("run"), sections);
  const diffData = document.getElementById("diff-data");
  if (diffData) drawDiff(JSON.parse(diffData.textContent), document.getElementById("diff"));
  document.documentElement.dataset.ready = "true";
}
