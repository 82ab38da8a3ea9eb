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
      if (ours < 1 || heads.length !== 3) continue;
      table.dataset.compares = "";
      for (const row of table.rows) row.cells[ours]?.classList.add("ours");
    }
  }

  // Buttons for the programs of a page, whose blocks `website/scripts.py` counts.
  function programs() {
    const place = document.querySelector("article .programs");
    if (!place || place.firstChild) return;
    const blocks = [...document.querySelectorAll("article .highlight code")];
    const chosen = place.dataset.programs.split(" ").map((i) => blocks[i]);
    const code = (block) => block.textContent.trimEnd();
    const title = document.querySelector("article h1").firstChild.textContent;
    const button = (text, action) => {
      const made = Object.assign(document.createElement("button"), { type: "button" });
      made.className = "md-button";
      made.textContent = text;
      made.onclick = () => action(made);
      place.append(made, " ");
    };
    button("Copy the programs as one script", async (made) => {
      const script = `# ${title}: ${location.href}\n\n${chosen.map(code).join("\n\n\n")}\n`;
      await navigator.clipboard.writeText(script);
      made.textContent = "Copied";
    });
    button("Save as notebook", () => {
      const cells = [...place.parentElement.children].map((part) => cell(part, chosen, code));
      const link = document.createElement("a");
      const file = new Blob([JSON.stringify(notebook(cells))], { type: "application/json" });
      link.href = URL.createObjectURL(file);
      link.download = `${title.toLowerCase().replace(/\W+/g, "_")}.ipynb`;
      link.click();
    });
  }

  function cell(part, chosen, code) {
    const block = part.querySelector(".highlight code, code");
    const is = part.matches(".highlight") && chosen.includes(block) ? "code" : "markdown";
    const level = /^H([1-6])$/.exec(part.tagName)?.[1];
    const text = level ? `${"#".repeat(level)} ${part.firstChild.textContent}` : part.innerText;
    const shown = part.matches(".highlight") ? `\`\`\`text\n${code(block)}\n\`\`\`` : text;
    const source = is === "code" ? code(block) : shown.trim();
    const more = is === "code" ? { execution_count: null, outputs: [] } : {};
    return { cell_type: is, metadata: {}, source, ...more };
  }

  function notebook(found) {
    const cells = found.filter((x) => x.source).map((x, i) => ({ ...x, id: `${i}` }));
    const kernelspec = { display_name: "Python 3", language: "python", name: "python3" };
    return { cells, metadata: { kernelspec }, nbformat: 4, nbformat_minor: 5 };
  }

  // Names in tables break between their words.
  function breakable() {
    for (const code of document.querySelectorAll("article td code:not(:has(wbr))")) {
      const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
      const texts = [];
      while (walker.nextNode()) texts.push(walker.currentNode);
      for (const text of texts) {
        const words = text.data.split(/(?<=[_/])|(?<=\()(?!\))|(?<=\.)(?=[a-z])|(?<=[a-z]{5})(?=[A-Z])/);
        const split = words.flatMap((word) => [word, document.createElement("wbr")]);
        text.replaceWith(...split.slice(0, -1));
      }
    }
  }

  // Tables that are cut, and on a phone those whose columns are too narrow for their words.
  const NARROW = 76;

  function stacked() {
    const isPhone = matchMedia("(max-width: 44.9em)").matches;
    for (const table of document.querySelectorAll("article table:not([class], [data-compares])")) {
      const heads = [...(table.tHead?.rows[0]?.cells || [])];
      const room = table.closest(".md-typeset__scrollwrap")?.clientWidth ?? innerWidth;
      const isCut = table.offsetWidth > room + 1;
      const narrow = heads.some((x) => x.offsetWidth < NARROW && x.offsetHeight > 60);
      const tall = [...table.rows].some((x) => x.offsetHeight > 240);
      if (!isPhone || heads.length < 3 || !(isCut || narrow || tall)) {
        // Words break only where a table is cut otherwise.
        if (isCut) table.dataset.tight = "";
        continue;
      }
      for (const row of table.tBodies[0].rows)
        [...row.cells].forEach((x, i) => (x.dataset.head = heads[i].textContent.trim()));
      table.classList.add("stacked");
    }
  }

  // The parts of `<div class="tabs" markdown>`, one at a time.
  function tabs() {
    for (const place of document.querySelectorAll("article .tabs")) {
      const parts = [...place.querySelectorAll("[data-tab]")];
      if (place.querySelector("[role=tab]")) continue;
      const list = document.createElement("div");
      list.setAttribute("role", "tablist");
      const buttons = parts.map((part) => {
        const made = Object.assign(document.createElement("button"), { type: "button" });
        made.setAttribute("role", "tab");
        made.textContent = part.dataset.tab;
        made.onclick = () => show(part);
        return made;
      });
      const show = (shown) => {
        parts.forEach((part, i) => {
          part.hidden = part !== shown;
          buttons[i].setAttribute("aria-selected", `${part === shown}`);
        });
      };
      list.append(...buttons);
      place.prepend(list);
      show(parts[0]);
    }
  }

  document$.subscribe(() => {
    typeset();
    tabs();
    programs();
    compares();
    sortable();
    breakable();
    stacked();
  });
})();
