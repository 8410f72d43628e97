// The solutions of one problem as a tree: steps that begin alike share their nodes.

import { colour, drawn } from "/detail.js";

const ACROSS = 46;
const DOWN = 24;
const MARGIN = 16;

function grow(solutions) {
  // Solutions that share a step measured it apart: a node shows the mean.
  const root = { children: new Map(), values: solutions.map((s) => s.start), depth: 0, places: [] };
  for (const solution of solutions) {
    let node = root;
    solution.steps.forEach((step, t) => {
      if (!node.children.has(step.text)) {
        node.children.set(step.text, { children: new Map(), values: [], text: step.text, depth: t + 1, places: [] });
      }
      node = node.children.get(step.text);
      node.values.push(step.value);
      node.places.push({ id: solution.id, step: t });
    });
    node.end = solution;
  }
  return root;
}

function mean(values) {
  const known = values.filter((v) => v !== null && v !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

function place(root) {
  let leaves = 0;
  let deepest = 0;
  const order = [];
  // A stack instead of recursion: a chain may have thousands of steps.
  const stack = [[root, false]];
  while (stack.length) {
    const [node, done] = stack.pop();
    if (done) {
      const rows = [...node.children.values()].map((c) => c.row);
      node.row = (rows[0] + rows[rows.length - 1]) / 2;
      continue;
    }
    order.push(node);
    deepest = Math.max(deepest, node.depth);
    if (!node.children.size) node.row = leaves++;
    else {
      stack.push([node, true]);
      for (const child of [...node.children.values()].reverse()) stack.push([child, false]);
    }
  }
  return { order, leaves, deepest };
}

const x = (node) => MARGIN + node.depth * ACROSS;
const y = (node) => MARGIN + node.row * DOWN;

export function drawTree(target, solutions, current, open) {
  const root = grow(solutions);
  const { order, leaves, deepest } = place(root);
  const edges = [];
  const nodes = [];
  for (const node of order) {
    for (const child of node.children.values()) {
      const middle = (x(node) + x(child)) / 2;
      edges.push(drawn("path", { class: "edge", d: `M${x(node)} ${y(node)} C${middle} ${y(node)} ${middle} ${y(child)} ${x(child)} ${y(child)}` }));
    }
    const here = node.places.some((p) => p.id === current);
    const words = node.text === undefined ? "the problem" : node.text;
    const circle = drawn("circle", { class: here ? "node here" : "node", cx: x(node), cy: y(node), r: 7 });
    const measured = mean(node.values);
    circle.style.fill = colour(measured);
    const value = measured === null ? "value not known" : `value ${measured.toFixed(2)}`;
    const title = drawn("title");
    title.textContent = `${value}\n${words}`;
    circle.append(title);
    if (node.places.length) {
      const go = () => open(node.places[0].id, node.places[0].step);
      circle.setAttribute("tabindex", "0");
      circle.setAttribute("role", "link");
      circle.setAttribute("aria-label", `${value}, ${words.slice(0, 80)}`);
      circle.addEventListener("click", go);
      circle.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
    }
    nodes.push(circle);
    if (node.end) {
      const end = drawn("text", { x: x(node) + 12, y: y(node) + 4 });
      end.textContent = [node.end.outcome, node.end.answer].filter((w) => w !== null && w !== undefined).join(": ");
      nodes.push(end);
    }
  }
  const width = MARGIN * 2 + deepest * ACROSS + 160;
  const height = MARGIN * 2 + Math.max(1, leaves - 1) * DOWN + 8;
  target.replaceChildren(drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Tree of solutions" }, ...edges, ...nodes));
  target.hidden = false;
}
