// Follows state.json and draws it. All text goes in as text: nothing of a store is read as HTML.
"use strict";

const EVERY = 3000; // ms
const WIDE = 360, HIGH = 220, LEFT = 42, RIGHT = 8, TOP = 8, BOTTOM = 26;
const COLOURS = 7, MARKS = 4;

const $ = (id) => document.getElementById(id);

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function clock(seconds) {
  if (seconds === null || seconds === undefined) return "--";
  const whole = Math.round(seconds);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

function eta(told) {
  if (told.low === null || told.high === null) return clock(told.seconds);
  return `${clock(told.seconds)} (${clock(told.low)} to ${clock(told.high)})`;
}

// -- the parts of the page

function numbers(p) {
  const running = p.slots.filter((slot) => slot.work).length;
  const total = p.done + p.failed + p.left;
  const rows = [["done", `${p.done} of ${total}`], ["running", running], ["failed", p.failed],
    ["waiting", Math.max(0, p.left - running)]];
  if (p.counts.cells_deferred) rows.push(["deferred cells", p.counts.cells_deferred]);
  if (p.elapsed === null) rows.push(["run", "none is at work"]);
  else rows.push(["elapsed", clock(p.elapsed)], ["ETA", eta(p.eta)]);
  rows.push(["slot-hours used", p.slot_hours.toFixed(2)]);
  $("bar").max = Math.max(1, total);
  $("bar").value = p.done + p.failed;
  $("numbers").replaceChildren(
    ...rows.map(([name, value]) => element("div", null, element("dt", name), element("dd", value))));
}

function failures(p) {
  const told = Object.entries(p.failures).map(([kind, count]) => `${kind} ${count}`);
  $("failures").hidden = !told.length;
  $("failures").textContent = `Failures: ${told.join(", ")}`;
}

function lists(p) {
  $("at-work").hidden = !p.slots.length;
  $("slots").replaceChildren(...p.slots.map((slot) => element("li", null,
    element("span", slot.place), element("span", slot.work || "idle"),
    element("span", slot.work ? clock(slot.seconds) : ""))));
  $("to-come").hidden = !p.waiting.length;
  const several = new Set(p.waiting.map((item) => item.model)).size > 1;
  $("waiting").replaceChildren(...p.waiting.map((item) => element("li",
    `${several ? item.model + " " : ""}${item.task} ${item.pieces}`)));
}

function choice(p) {
  $("choice").hidden = p.sweeps.length < 2;
  const shown = [...$("sweeps").options].map((option) => option.value);
  if (String(shown) !== String(p.sweeps))
    $("sweeps").replaceChildren(...p.sweeps.map((name) => new Option(name, name)));
  if (document.activeElement !== $("sweeps")) $("sweeps").value = p.sweep;
}

// -- score against K

function groups(curves) {
  const found = new Map();
  for (const curve of curves) {
    if (!curve.points.some((point) => point.n)) continue;
    const key = JSON.stringify([curve.model, curve.task]);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(curve);
  }
  return found;
}

function scale(curves) {
  const points = curves.flatMap((curve) => curve.points).filter((point) => point.n);
  const ks = points.map((point) => point.k);
  const low = Math.min(...points.map((point) => point.mean - (point.sd || 0)));
  const high = Math.max(...points.map((point) => point.mean + (point.sd || 0)));
  const pad = Math.max(1, 0.05 * (high - low));
  const [k0, k1, y0, y1] = [Math.min(...ks), Math.max(...ks), low - pad, high + pad];
  return {
    ks: [...new Set(ks)].sort((a, b) => a - b), y0, y1,
    x: (k) => LEFT + 10 + (WIDE - LEFT - RIGHT - 20) * (k1 > k0 ? (k - k0) / (k1 - k0) : 0.5),
    y: (score) => TOP + (HIGH - TOP - BOTTOM) * (1 - (score - y0) / (y1 - y0)),
  };
}

function axes(svg, at) {
  const [left, bottom] = [LEFT, HIGH - BOTTOM];
  for (let i = 0; i <= 4; i++) {
    const score = at.y0 + (i / 4) * (at.y1 - at.y0), y = at.y(score);
    svg.append(shape("line", {class: "axis", x1: left, x2: WIDE - RIGHT, y1: y, y2: y}));
    svg.append(shape("text", {x: left - 4, y: y + 4, "text-anchor": "end"}, score.toFixed(1)));
  }
  const step = Math.ceil(at.ks.length / 13);
  at.ks.filter((_, i) => i % step === 0).forEach((k) =>
    svg.append(shape("text", {x: at.x(k), y: bottom + 16, "text-anchor": "middle"}, k)));
  svg.append(shape("text", {x: WIDE - RIGHT, y: HIGH - 1, "text-anchor": "end"}, "K"));
}

function mark(kind, x, y, colour) {
  const about = {class: `mark ${colour}`};
  if (kind === 0) return shape("circle", {...about, cx: x, cy: y, r: 3.5});
  if (kind === 1) return shape("rect", {...about, x: x - 3.5, y: y - 3.5, width: 7, height: 7});
  const corners = kind === 2
    ? [[0, -4.5], [4.5, 3.5], [-4.5, 3.5]] : [[0, -5], [5, 0], [0, 5], [-5, 0]];
  return shape("polygon",
    {...about, points: corners.map(([dx, dy]) => `${x + dx},${y + dy}`).join(" ")});
}

function look(index) {
  const turn = Math.floor(index / COLOURS) % 3;
  return {colour: `c${index % COLOURS}`, dash: `dash${turn}`, kind: index % MARKS};
}

function line(svg, curve, at, index) {
  const {colour, dash, kind} = look(index);
  const points = curve.points.filter((point) => point.n);
  const path = points.map((point) => `${at.x(point.k)},${at.y(point.mean)}`).join(" ");
  svg.append(shape("polyline", {class: `line ${colour} ${dash}`, points: path}));
  for (const point of points) {
    const [x, y] = [at.x(point.k), at.y(point.mean)];
    if (point.sd) svg.append(shape("line", {class: `spread ${colour}`, x1: x, x2: x,
      y1: at.y(point.mean - point.sd), y2: at.y(point.mean + point.sd)}));
    svg.append(mark(kind, x, y, colour));
  }
}

function legend(curves) {
  const made = element("div");
  made.className = "legend";
  curves.forEach((curve, index) => {
    const {colour, dash, kind} = look(index);
    const svg = shape("svg", {viewBox: "0 0 32 12", "aria-hidden": "true"});
    svg.append(shape("line", {class: `line ${colour} ${dash}`, x1: 0, x2: 32, y1: 6, y2: 6}));
    svg.append(mark(kind, 16, 6, colour));
    made.append(element("span", null, svg, ` ${curve.strategy}`));
  });
  return made;
}

function told(point) {
  if (!point) return "";
  if (!point.n) return "…";
  const spread = point.sd === null ? "" : ` ±${point.sd.toFixed(2)}`;
  return `${point.mean.toFixed(2)}${spread} n=${point.n}${point.n < point.asked ? `/${point.asked}` : ""}`;
}

function table(curves, ks) {
  const made = element("table", null, element("tr", null, element("th", "strategy"),
    ...ks.map((k) => element("th", `K=${k}`))));
  for (const curve of curves) {
    const by = new Map(curve.points.map((point) => [point.k, point]));
    made.append(element("tr", null, element("td", curve.strategy),
      ...ks.map((k) => element("td", told(by.get(k))))));
  }
  const scroll = element("div", null, made);
  scroll.className = "scroll";
  return element("details", null, element("summary", "numbers"), scroll);
}

function figure(key, curves) {
  const {model, task} = curves[0], at = scale(curves);
  const svg = shape("svg", {viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img",
    "aria-label": `score against K: ${model}, ${task}`});
  axes(svg, at);
  curves.forEach((curve, index) => line(svg, curve, at, index));
  const made = element("figure", null, element("figcaption", `${task}`), svg, legend(curves),
    table(curves, at.ks));
  const under = element("p", model);
  under.className = "quiet";
  made.insertBefore(under, svg);
  made.dataset.key = key;
  return made;
}

let drawn = "";
function curves(p) {
  const now = JSON.stringify(p.curves);
  if (now === drawn) return;
  drawn = now;
  const open = new Set([...document.querySelectorAll("figure:has(details[open])")]
    .map((one) => one.dataset.key));
  const figures = [...groups(p.curves)].map(([key, of]) => figure(key, of));
  for (const one of figures) one.querySelector("details").open = open.has(one.dataset.key);
  $("scores").hidden = !figures.length;
  $("curves").replaceChildren(...figures);
}

// -- the loop

function show(state) {
  const p = state.picture;
  $("store").textContent = state.store;
  if (!p) {
    $("sweep").textContent = "no sweep in this store yet";
    return;
  }
  const scrolled = [scrollX, scrollY];
  $("sweep").textContent = p.sweep;
  document.title = `${p.done}/${p.done + p.failed + p.left} ${p.sweep}`;
  $("at").textContent = `as of ${new Date(p.at).toLocaleTimeString()}`;
  numbers(p);
  failures(p);
  lists(p);
  choice(p);
  curves(p);
  $("all").hidden = false;
  scrollTo(...scrolled);
}

function trouble(text) {
  $("trouble").hidden = !text;
  $("trouble").textContent = text || "";
  $("all").classList.toggle("stale", Boolean(text));
}

async function ask() {
  const wanted = new URLSearchParams(location.search).get("sweep");
  const query = wanted ? `?${new URLSearchParams({sweep: wanted})}` : "";
  let state;
  try {
    state = await (await fetch(`state.json${query}`)).json();
  } catch {
    trouble("No answer: has `lp-sweep dashboard` ended? It is asked again.");
    return;
  }
  if (state.error) {
    $("store").textContent = state.store;
    trouble(`${state.error} It is looked at again.`);
    return;
  }
  trouble("");
  show(state);
  trouble((state.picture && state.picture.notes.join(" ")) || "");
}

async function follow() {
  if (!document.hidden) await ask();
  setTimeout(follow, EVERY);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
$("sweeps").addEventListener("change", (event) => {
  const url = new URL(location.href);
  url.searchParams.set("sweep", event.target.value);
  history.replaceState(null, "", url);
  ask();
});
follow();
