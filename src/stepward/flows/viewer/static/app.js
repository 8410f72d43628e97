// The list, its filters, the keys and the address. The server answers with JSON only.

import { badge, make, show, strip } from "/detail.js";
import { drawTree } from "/tree.js";

const PAGE = 50;
const find = (id) => document.getElementById(id);
const state = { folders: [], folder: null, offset: 0, total: 0, rows: [], chosen: -1, problem: "", solution: null, asked: 0 };

async function ask(what, given = {}) {
  const query = new URLSearchParams({ folder: state.folder ? state.folder.name : "", ...given });
  const answer = await fetch(`/api/${what}?${query}`);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || answer.statusText);
  return body;
}

function fail(fault) {
  find("detail").replaceChildren(make("p", { class: "error", role: "alert" }, String(fault.message || fault)));
}

// --- list

function chosenFilters() {
  const given = {};
  for (const menu of find("menus").querySelectorAll("select")) if (menu.value) given[menu.name] = menu.value;
  if (find("search").value.trim()) given.search = find("search").value.trim();
  if (state.problem) given.problem = state.problem;
  return given;
}

async function list(offset = 0, choose = -1) {
  const turn = ++state.asked;
  find("rows").setAttribute("aria-busy", "true");
  try {
    const page = await ask("page", { ...chosenFilters(), offset, limit: PAGE });
    if (turn !== state.asked) return; // an answer that was overtaken by a later question
    Object.assign(state, { offset, total: page.total, rows: page.rows, chosen: -1 });
    drawList();
    if (choose >= 0 && page.rows.length) await pick(Math.min(choose, page.rows.length - 1));
  } catch (fault) {
    fail(fault);
  } finally {
    find("rows").removeAttribute("aria-busy");
  }
}

function drawList() {
  const words = state.total === 1 ? "1 row" : `${state.total.toLocaleString("en")} rows`;
  find("count").textContent = state.total === state.folder.count ? words : `${words} of ${state.folder.count.toLocaleString("en")}`;
  find("rows").replaceChildren(...state.rows.map((row, k) => make("li", { role: "option", id: `row-${k}`, "aria-selected": "false", onclick: () => pick(k) },
    make("div", { class: "snippet" }, row.snippet), strip(row.strip),
    make("div", { class: "badges" }, ...row.badges.map(badge)), make("div", { class: "id" }, row.id))));
  const last = Math.min(state.offset + PAGE, state.total);
  find("range").textContent = state.total ? `${(state.offset + 1).toLocaleString("en")}–${last.toLocaleString("en")}` : "";
  find("earlier").disabled = state.offset === 0;
  find("later").disabled = last >= state.total;
  find("only-problem").hidden = !state.problem;
  find("only-problem").firstElementChild.textContent = `problem ${state.problem}`;
  markRow();
}

function markRow() {
  find("rows").querySelectorAll("li").forEach((li, k) => li.setAttribute("aria-selected", String(k === state.chosen)));
  const li = find(`row-${state.chosen}`);
  if (li) {
    li.scrollIntoView({ block: "nearest" });
    find("rows").setAttribute("aria-activedescendant", li.id);
  }
}

async function pick(k) {
  if (!state.rows[k]) return;
  state.chosen = k;
  markRow();
  await open(state.rows[k].id);
}

async function move(by) {
  const next = state.chosen + by;
  if (next >= state.rows.length && state.offset + PAGE < state.total) await list(state.offset + PAGE, 0);
  else if (next < 0 && state.offset > 0) await list(state.offset - PAGE, PAGE - 1);
  else await pick(Math.max(0, Math.min(next, state.rows.length - 1)));
}

// --- one solution

async function open(id, step = null) {
  const turn = ++state.asked;
  try {
    const solution = await ask("solution", { id });
    if (turn !== state.asked) return;
    state.solution = solution;
    show(find("detail"), solution, ask, { tree: toggleTree, sameProblem });
    history.replaceState(null, "", `#${new URLSearchParams({ folder: state.folder.name, id })}`);
    if (step !== null) focusStep(step);
  } catch (fault) {
    if (turn === state.asked) fail(fault);
  }
}

async function toggleTree() {
  const target = find("tree");
  if (!state.solution) return;
  if (!target.hidden) {
    target.hidden = true;
    return;
  }
  try {
    const { solutions } = await ask("problem", { id: state.solution.problem_id });
    drawTree(target, solutions, state.solution.id, (id, step) => open(id, step));
  } catch (fault) {
    fail(fault);
  }
}

function sameProblem() {
  state.problem = state.solution.problem_id;
  list();
}

function focusStep(t) {
  const item = find("detail").querySelector(`[data-step="${t}"]`);
  if (item) {
    item.focus();
    item.scrollIntoView({ block: "nearest" });
  }
}

function moveStep(by) {
  if (!state.solution) return;
  const here = document.activeElement.closest ? document.activeElement.closest("li.step") : null;
  const t = here ? Number(here.dataset.step) + by : by > 0 ? 0 : state.solution.steps.length - 1;
  focusStep(Math.max(0, Math.min(t, state.solution.steps.length - 1)));
}

function rolloutsHere() {
  const here = document.activeElement.closest ? document.activeElement.closest("li.step") : null;
  const item = here || find("detail").querySelector("li.step");
  const button = item && item.querySelector("[data-rollouts]");
  if (button) button.click();
}

// --- folders, menus, keys

function chooseFolder(name) {
  state.folder = state.folders.find((f) => f.name === name) || state.folders[0];
  find("folder").value = state.folder.name;
  const facts = Object.entries(state.folder.facts).map(([k, v]) => (v === false ? `not ${k}` : v === true ? k : `${k}: ${v}`));
  find("facts").textContent = facts.join(" · ");
  find("facts").title = facts.join("\n");
  const sort = { name: "sort", label: "order", options: state.folder.sorts.map((s) => ({ value: s.name, label: s.label })) };
  find("menus").replaceChildren(...[...state.folder.filters, sort].map((menu) => make("label", {}, menu.label,
    make("select", { name: menu.name, onchange: () => list() },
      make("option", { value: "" }, menu.name === "sort" ? "as stored" : menu.name === "scorer" ? "(first)" : "any"),
      ...menu.options.map((o) => make("option", { value: o.value }, o.label))))));
  state.problem = "";
  find("search").value = "";
  state.solution = null;
  find("detail").replaceChildren(make("p", { class: "quiet empty" }, "Choose a solution."));
}

const keys = {
  j: () => move(1), k: () => move(-1), n: () => moveStep(1), p: () => moveStep(-1), r: rolloutsHere, t: toggleTree,
  "/": () => find("search").focus(), "?": () => find("help").showModal(),
  "[": () => !find("earlier").disabled && list(state.offset - PAGE, 0), "]": () => !find("later").disabled && list(state.offset + PAGE, 0),
  Escape: () => find("rows").focus(), ArrowDown: null, ArrowUp: null,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
  const typing = event.target.matches("input, select, textarea");
  if (typing && event.key !== "Escape") return;
  let act = keys[event.key];
  if (event.target === find("rows") && event.key === "ArrowDown") act = () => move(1);
  if (event.target === find("rows") && event.key === "ArrowUp") act = () => move(-1);
  if (event.target === find("rows") && event.key === "Enter") act = () => focusStep(0);
  if (!act) return;
  event.preventDefault();
  act();
});

let typingTimer = 0;
find("search").addEventListener("input", () => {
  clearTimeout(typingTimer);
  typingTimer = setTimeout(() => list(), 200);
});
find("filters").addEventListener("submit", (event) => { event.preventDefault(); list(); });
find("earlier").addEventListener("click", () => list(state.offset - PAGE));
find("later").addEventListener("click", () => list(state.offset + PAGE));
find("only-problem").querySelector("button").addEventListener("click", () => { state.problem = ""; list(); });
find("help-button").addEventListener("click", () => find("help").showModal());
find("folder").addEventListener("change", () => { chooseFolder(find("folder").value); list(0, 0); });

async function start() {
  try {
    const answer = await (await fetch("/api/folders")).json();
    state.folders = answer.folders;
    find("folder").replaceChildren(...state.folders.map((f) => make("option", { value: f.name }, `${f.name} (${f.kind}, ${f.count.toLocaleString("en")})`)));
    find("reports").replaceChildren(...answer.reports.map((name) => make("a", { href: `/report/${encodeURIComponent(name)}` }, `evaluation: ${name}`)));
    if (!state.folders.length) {
      fail(new Error("There is nothing to browse here; see the evaluation pages above."));
      return;
    }
    const asked = new URLSearchParams(location.hash.slice(1));
    chooseFolder(asked.get("folder"));
    await list(0, asked.get("id") ? -1 : 0);
    if (asked.get("id")) await open(asked.get("id"));
    document.body.dataset.ready = "true";
  } catch (fault) {
    fail(fault);
  }
}
start();
