// One solution: its steps with value, interval, counts, verdicts and rollouts.
// Everything a model wrote goes through textContent; nothing is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

export function drawn(tag, properties = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// Orange to blue by way of grey: told apart by colour-blind readers, and never the only sign.
export function colour(value) {
  if (value === null || value === undefined) return "var(--rule)";
  if (value < 0.5) return `color-mix(in srgb, var(--mid) ${Math.round(value * 200)}%, var(--low))`;
  return `color-mix(in srgb, var(--high) ${Math.round((value - 0.5) * 200)}%, var(--mid))`;
}

const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

export function badge(words) {
  const known = ["right", "wrong", "supported", "refuted"].find((w) => words === w || words === `final answer ${w}`);
  const alarm = /refuted|disagreement|missed|false alarm|earlier|later step/.test(words) ? "alarm" : "";
  return make("span", { class: `badge ${known || alarm}` }, words);
}

function gauge(prefix) {
  const { value, low, high } = prefix;
  const parts = [drawn("rect", { class: "rail", x: 0, y: 6, width: 100, height: 4, rx: 2 })];
  if (value !== null && value !== undefined) {
    const bar = drawn("rect", { x: 0, y: 6, width: 100 * value, height: 4, rx: 2 });
    bar.style.fill = colour(value);
    parts.push(bar);
    if (low !== null && low !== undefined && high !== null && high !== undefined) {
      parts.push(drawn("line", { class: "whisker", x1: 100 * low, x2: 100 * high, y1: 8, y2: 8 }));
    }
    const dot = drawn("circle", { cx: 100 * value, cy: 8, r: 4 });
    dot.style.fill = colour(value);
    parts.push(dot);
  }
  return drawn("svg", { class: "gauge", viewBox: "-4 0 108 16", "aria-hidden": "true" }, ...parts);
}

function valueWords(prefix) {
  const { value, low, high } = prefix;
  if (value === null || value === undefined) return "value not known";
  if (low === null || low === undefined) return number(value);
  return `${number(value)} [${number(low)}, ${number(high)}]`;
}

function countWords(counts) {
  return Object.entries(counts).map(([name, n]) => `${n} ${name.replace("_", " ")}`).join(" · ");
}

// The step's text with the claims that verdicts are about underlined. Spans count Unicode characters.
function marked(step) {
  const characters = Array.from(step.text);
  const spans = (step.verdicts || [])
    .filter((v) => v.span)
    .map((v) => ({ start: v.span.start, end: Math.min(v.span.end, characters.length), kind: v.verdict }))
    .filter((s) => s.start < s.end)
    .sort((a, b) => a.start - b.start);
  const pieces = [];
  let at = 0;
  for (const span of spans) {
    if (span.start < at) continue;
    pieces.push(characters.slice(at, span.start).join(""));
    pieces.push(make("mark", { class: span.kind }, characters.slice(span.start, span.end).join("")));
    at = span.end;
  }
  pieces.push(characters.slice(at).join(""));
  return make("div", { class: "text" }, ...pieces);
}

function verdicts(step) {
  if (!step.verdicts || !step.verdicts.length) return null;
  return make("ul", { class: "verdicts" }, ...step.verdicts.map((v) => make("li", {},
    badge(v.verdict), ` ${v.verifier}`, v.reason ? make("span", { class: "quiet" }, ` (${v.reason.replace("_", " ")})`) : null,
    v.evidence ? `: ${v.evidence}` : null)));
}

function scores(step) {
  if (!step.scores) return null;
  return make("table", { class: "scores" }, make("tbody", {}, ...Object.entries(step.scores).map(([name, value]) =>
    make("tr", {}, make("td", {}, name), make("td", {}, number(value, 3))))));
}

async function toggleRollouts(button, prefix, solution, ask) {
  const item = button.closest(".step");
  const open = item.querySelector(".rollouts");
  if (open) {
    open.remove();
    button.setAttribute("aria-expanded", "false");
    return;
  }
  const panel = make("div", { class: "rollouts" }, "loading …");
  item.append(panel);
  button.setAttribute("aria-expanded", "true");
  const { rollouts } = await ask("rollouts", { id: solution.id, prefix });
  panel.replaceChildren(rollouts.length ? make("ol", {}, ...rollouts.map((r) => make("li", {}, make("details", {},
    make("summary", {}, `#${r.index} `, badge((r.outcome || "not graded").replace("_", " ")),
      r.answer !== null ? ` answer ${r.answer}` : "", make("span", { class: "quiet" }, ` ${r.finish_reason}, seed ${r.seed}`)),
    make("pre", {}, r.error ? `${r.error}\n${r.text}` : r.text)))))
    : prefix === solution.steps.length ? "This count is the solution's own outcome: nothing was drawn after its end."
      : "No rollouts are stored for this prefix.");
}

function counts(prefix, t, solution, ask) {
  const made = prefix.counts && Object.keys(prefix.counts).length;
  if (!made) return null;
  const button = make("button", { type: "button", class: "counts", "data-rollouts": t, "aria-expanded": "false",
    title: "Show the rollouts after this step" }, countWords(prefix.counts));
  button.addEventListener("click", () => toggleRollouts(button, t, solution, ask));
  return button;
}

function stepItem(step, t, solution, ask) {
  const after = solution.prefixes[t + 1] || { value: null };
  const gold = solution.human ? solution.human.first_error : null;
  const item = make("li", { class: "step", tabindex: "0", "data-step": t,
    "aria-label": `step ${t}, value ${valueWords(after)}` });
  item.style.borderLeftColor = colour(after.value);
  if (solution.first_error === t || gold === t) item.classList.add("first-error");
  const side = make("div", {},
    make("div", { class: "number" }, `step ${t}`, step.phase === "think" ? " (thinking)" : ""),
    gauge(after), make("div", { class: "value" }, valueWords(after)),
    counts(after, t + 1, solution, ask));
  const labels = [];
  if (step.label === 1) labels.push(badge("right"));
  if (step.label === 0) labels.push(badge("wrong"));
  if (step.label === null && !solution.human) labels.push(badge("label unknown"));
  if (gold === t) labels.push(make("span", { class: "badge wrong" }, "human: first error"));
  for (const [name, made] of Object.entries(solution.predictions || {})) {
    if (made.first_error === t) labels.push(make("span", { class: "badge alarm" }, `${name}: first error`));
  }
  const why = [];
  if (step.decided_by) why.push(`decided by ${step.decided_by}`);
  if (step.p_first_error !== null && step.p_first_error !== undefined) why.push(`P(first error) ${number(step.p_first_error, 3)}`);
  item.append(side, make("div", {}, marked(step),
    make("div", { class: "badges" }, ...labels, why.length ? make("span", { class: "quiet" }, why.join(", ")) : null),
    scores(step), verdicts(step), step.rationale ? make("p", { class: "rationale" }, step.rationale) : null));
  return item;
}

function header(solution) {
  const graded = { right: "final answer right", wrong: "final answer wrong" };
  const badges = [badge(solution.outcome ? graded[solution.outcome] || solution.outcome.replace("_", " ") : "not graded")];
  if (solution.human) {
    badges.push(make("span", { class: "badge" }, solution.human.first_error === null
      ? "human: no error" : `human: error at step ${solution.human.first_error}`));
  } else if (solution.first_error !== null) badges.push(make("span", { class: "badge wrong" }, `first error at step ${solution.first_error}`));
  for (const [name, made] of Object.entries(solution.predictions || {})) {
    badges.push(badge(`${name}: ${made.kind}`));
  }
  return make("div", {}, make("h1", {}, solution.id), make("div", { class: "badges" }, ...badges));
}

function pairs(facts) {
  return make("dl", { class: "facts" }, ...Object.entries(facts).filter(([, v]) => v !== "" && v !== null && v !== undefined)
    .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]));
}

export function show(target, solution, ask, actions) {
  const answers = { answer: solution.final_answer, gold: solution.answers.join("  or  ") };
  const legend = make("span", { class: "legend" }, "value after a step: 0", gauge({ value: 0.02 }), gauge({ value: 0.5 }), gauge({ value: 0.98 }), "1");
  const start = solution.prefixes[0];
  let before = null;
  if (start && start.value !== null && start.value !== undefined) {
    before = make("div", { class: "step" }, make("div", {}, make("div", { class: "number" }, "before any step"), gauge(start),
      make("div", { class: "value" }, valueWords(start)), counts(start, 0, solution, ask)), make("div", {}));
    before.style.borderLeftColor = colour(start.value);
  }
  target.replaceChildren(
    header(solution),
    make("p", { class: "problem" }, solution.problem),
    pairs(answers),
    make("details", { class: "more" }, make("summary", {}, "where it is from"), pairs(solution.facts)),
    make("div", { class: "toolbar" },
      make("button", { type: "button", id: "tree-button", onclick: actions.tree }, "tree of this problem"),
      make("button", { type: "button", id: "same-problem", onclick: actions.sameProblem }, "all solutions of this problem"), legend),
    make("div", { id: "tree", hidden: true }),
    ...(before ? [before] : []),
    make("ol", { class: "steps" }, ...solution.steps.map((step, t) => stepItem(step, t, solution, ask))));
  target.scrollTop = 0;
}

export function strip(values) {
  const width = 100 / Math.max(1, values.length);
  return drawn("svg", { class: "strip", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    ...values.map((value, k) => {
      const cell = drawn("rect", { x: k * width, y: 0, width: Math.max(0.1, width - 0.6), height: 8 });
      cell.style.fill = colour(value);
      return cell;
    }));
}
