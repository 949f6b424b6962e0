// Sorts by heading, shows tooltips for pointer and keyboard, and opens folded parts in print.
// The page has the same content without it.
"use strict";
(() => {
  // -- a tooltip: one element, moved to whatever has the pointer or the focus
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);

  const hide = () => { tip.hidden = true; };
  let owner = null;
  const place = () => {
    const at = owner.getBoundingClientRect(), edge = 8;
    const room = document.documentElement.clientWidth - tip.offsetWidth - edge;
    tip.style.left = `${Math.max(edge, Math.min(at.left, room))}px`;
    const above = at.top - tip.offsetHeight - 6;
    tip.style.top = `${above > 0 ? above : at.bottom + 6}px`;
  };
  const show = (event) => {
    owner = event.target.closest("[data-tip]");
    if (!owner) return;
    tip.textContent = owner.dataset.tip;
    tip.hidden = false;
    place();
  };
  for (const name of ["mouseover", "focusin"]) document.addEventListener(name, show);
  for (const name of ["mouseout", "focusout"]) document.addEventListener(name, hide);
  document.addEventListener("scroll", () => { if (!tip.hidden) place(); }, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // -- sorting: up, down, and the original order
  const leading = /^[×<]?(?:t=)?([-+]?\d+(?:\.\d+)?)/;
  const number = (text) => {
    const found = leading.exec(text.trim().replace("−", "-").replaceAll(",", ""));
    return found ? Number(found[1]) : NaN;
  };
  const compared = (texts) => {
    const numbers = texts.map(number);
    const known = numbers.filter((value) => !Number.isNaN(value)).length;
    if (2 * known < texts.filter((text) => text.trim()).length) {
      return { keys: texts, by: (a, b) => a.localeCompare(b, "en", { numeric: true }) };
    }
    return { keys: numbers, by: (a, b) => a - b };
  };
  const sort = (table, original, column, direction) => {
    const rows = [...original];
    if (direction) {
      const { keys, by } = compared(rows.map((row) => row.cells[column].textContent));
      const key = new Map(rows.map((row, place) => [row, keys[place]]));
      const last = (row) => Number.isNaN(key.get(row));  // words always sort below numbers
      rows.sort((a, b) => last(a) - last(b) || (last(a) ? 0 : direction * by(key.get(a), key.get(b))));
    }
    table.tBodies[0].append(...rows);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const original = [...table.tBodies[0].rows];
    const headings = [...table.tHead.rows[0].cells];
    if (original.some((row) => row.cells.length < headings.length)) continue;  // "no rows"
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      if (heading.title) {
        button.dataset.tip = heading.title;
        button.setAttribute("aria-description", heading.title);
        heading.removeAttribute("title");
      }
      heading.append(button);
      button.addEventListener("click", () => {
        const next = { ascending: "descending", descending: null }[heading.ariaSort];
        const state = next === undefined ? "ascending" : next;
        for (const other of headings) other.removeAttribute("aria-sort");
        if (state) heading.setAttribute("aria-sort", state);
        sort(table, original, column, { ascending: 1, descending: -1 }[state] ?? 0);
      });
    });
  }

  // -- folded parts: open for a link that leads into them, and in print
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.localName === "details") at.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const item of opened) item.open = true;
  });
  addEventListener("afterprint", () => { for (const item of opened) item.open = false; });
})();
