// Formulas and tables.  KaTeX is 0.19.1 of the npm package `katex`, of which the style
// names the woff2 fonts alone, of which those that our formulas use are here; a page
// without formulas does not load it.
(() => {
  const assets = new URL(".", document.currentScript.src);

  function load(tag, attributes) {
    return new Promise((onload) => {
      document.head.append(Object.assign(document.createElement(tag), attributes, { onload }));
    });
  }

  async function typeset() {
    const formulas = document.querySelectorAll(".arithmatex");
    if (!formulas.length) return;
    load("link", { rel: "stylesheet", href: `${assets}katex/katex.min.css` });
    if (!window.katex) await load("script", { src: `${assets}katex/katex.min.js` });
    for (const formula of formulas) {
      const text = formula.textContent;
      katex.render(text.slice(2, -2), formula, { displayMode: text.startsWith("\\[") });
    }
  }

  // Tables inside of `<div class="sortable" markdown>` are sorted by a click on a heading;
  // numbers by their value, and cells without one last.
  const value = (row, column) => row.cells[column].textContent.trim();
  const number = (text) => parseFloat(text.replaceAll(",", ""));

  function sort(heading) {
    const table = heading.closest("table");
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    const column = heading.cellIndex;
    const isNumeric = rows.some((row) => !isNaN(number(value(row, column))));
    const last = down ? -Infinity : Infinity;
    const key = (row) => number(value(row, column));
    const byNumber = (a, b) => (isNaN(key(a)) ? last : key(a)) - (isNaN(key(b)) ? last : key(b));
    const byText = (a, b) => value(a, column).localeCompare(value(b, column));
    rows.sort((a, b) => (down ? -1 : 1) * ((isNumeric ? byNumber : byText)(a, b) || 0));
    table.tBodies[0].append(...rows);
  }

  function sortable() {
    for (const heading of document.querySelectorAll(".sortable th")) {
      heading.tabIndex = 0;
      heading.addEventListener("click", () => sort(heading));
      heading.addEventListener("keydown", (event) => event.key === "Enter" && sort(heading));
    }
  }

  // Tables with a column for Stepax: on a phone, the style puts it first.
  function compares() {
    for (const table of document.querySelectorAll("article table")) {
      const heads = [...(table.tHead?.rows[0]?.cells || [])];
      const ours = heads.findIndex((head) => head.textContent.trim() === "Stepax");
      if (ours < 1 || heads.length < 3 || heads.length > 5) continue;
      table.dataset.compares = "";
      for (const row of table.rows) row.cells[ours]?.classList.add("ours");
    }
  }

  document$.subscribe(() => {
    typeset();
    compares();
    sortable();
  });
})();
