// Sorts a table by the heading that is clicked: up, down, and as it was.
"use strict";
{
  const number = (text) =>
    parseFloat(text.replace(/^[×<]?(t=)?/, "").replace("−", "-").replaceAll(",", ""));

  const sorted = (rows, column, direction) => {
    const text = (row) => row.cells[column].textContent.trim();
    const isWord = (row) => Number.isNaN(number(text(row)));  // sorts below numbers, either way
    const filled = rows.filter(text);
    if (2 * filled.filter(isWord).length > filled.length) {
      return rows.toSorted((a, b) =>
        direction * text(a).localeCompare(text(b), "en", { numeric: true }));
    }
    return rows.toSorted((a, b) =>
      isWord(a) - isWord(b) || direction * (number(text(a)) - number(text(b))) || 0);
  };

  for (const table of document.querySelectorAll("table")) {
    const rows = [...table.tBodies[0].rows];
    for (const heading of table.querySelectorAll("th")) {
      const button = document.createElement("button");
      button.title = heading.title;
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const direction = { ascending: -1, descending: 0 }[heading.ariaSort] ?? 1;
        for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
        if (direction) heading.ariaSort = direction > 0 ? "ascending" : "descending";
        table.tBodies[0].append(...(direction ? sorted(rows, heading.cellIndex, direction) : rows));
      });
    }
  }
}
