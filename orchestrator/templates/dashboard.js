// Follows state.json and answer.json. Text goes in as text; the answer is HTML of the report's own
// templates, which escape all text of a store.
"use strict";

const EVERY = 3000; // ms
const $ = (id) => document.getElementById(id);

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  made.append(...children);
  return made;
}

// -- the parts of the page

function status(p) {
  const open = p.left + (p.counts.cells_deferred || 0);
  if (!open) return p.failed ? `Ended: ${p.failed} failed` : "Complete";
  if (p.elapsed === null) return `No run is at work: ${p.left} left`;
  const about = p.words.left.startsWith("at most") ? "" : "about ";
  return p.eta.seconds === null ? "Running" : `Running: ${about}${p.words.left} left`;
}

function numbers(p) {
  const running = p.slots.filter((slot) => slot.work).length;
  const total = p.done + p.failed + p.left;
  const rows = [["done", `${p.done} of ${total}`], ["running", running], ["failed", p.failed],
    ["waiting", Math.max(0, p.left - running)]];
  if (p.counts.cells_deferred) rows.push(["deferred cells", p.counts.cells_deferred]);
  if (p.elapsed !== null) rows.push(["elapsed", p.words.elapsed]);
  rows.push(["slot-hours used", p.slot_hours.toFixed(2)]);
  $("status").textContent = status(p);
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
  $("work").hidden = !p.slots.length && !p.waiting.length;
  $("at-work").hidden = !p.slots.length;
  $("slots").replaceChildren(...p.slots.map((slot, number) => element("li", null,
    element("span", slot.place), element("span", slot.work || "idle"),
    element("span", p.words.slots[number]))));
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

// -- the report's answer, with its figure and its table of scores

const style = new CSSStyleSheet();
document.adoptedStyleSheets = [style];
let shown = "";

function label(details) {
  return details.id || details.dataset.of;
}

async function answer() {
  const told = await (await fetch(`answer.json?${new URLSearchParams({...wanted(), shown})}`)).json();
  if (told.error) trouble(told.error);
  if (!told.part) return;
  const before = new Map([...$("report").querySelectorAll("details")].map((one) => [label(one), one.open]));
  const scrolled = [scrollX, scrollY];
  const hidden = $("next") ? $("next").hidden : true;
  shown = told.id;
  style.replaceSync(told.part.style);
  $("report").innerHTML = told.part.html;
  for (const one of $("report").querySelectorAll("details"))
    if (before.has(label(one))) one.open = before.get(label(one));
  $("next").hidden = hidden;
  scrollTo(...scrolled);
}

// -- the loop

function next(p) {  // a run that is at work goes on by itself
  if ($("next")) $("next").hidden = p.elapsed !== null;
}

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
  next(p);
  $("all").hidden = false;
  scrollTo(...scrolled);
}

function trouble(text) {
  $("trouble").hidden = !text;
  $("trouble").textContent = text || "";
  $("all").classList.toggle("stale", Boolean(text));
}

function wanted() {
  const sweep = new URLSearchParams(location.search).get("sweep");
  return sweep ? {sweep} : {};
}

async function ask() {
  let state;
  try {
    state = await (await fetch(`state.json?${new URLSearchParams(wanted())}`)).json();
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
  answer().catch(() => {});  // it is asked again
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
