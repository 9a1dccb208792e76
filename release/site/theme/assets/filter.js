// A filter above each long table: it hides the rows that lack one of the words.
const MOST_ROWS = 20;

function filterable(table) {
  const rows = [...table.tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const box = document.createElement("div");
  const input = document.createElement("input");
  const count = document.createElement("output");
  box.className = "filter";
  input.type = "search";
  input.placeholder = `Filter ${rows.length} rows`;
  input.setAttribute("aria-label", "Show only the rows of this table that contain these words");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row, at) => { row.hidden = !words.every((word) => texts[at].includes(word)); });
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
  box.append(input, count);
  (table.closest(".md-typeset__scrollwrap") ?? table).before(box);
}

// Tables can be scrolled with the keyboard. Material wraps them until the page is loaded.
addEventListener("load", () => {
  for (const wrapped of document.querySelectorAll(".md-typeset__scrollwrap")) wrapped.tabIndex = 0;
});

for (const table of document.querySelectorAll(".md-content table")) {
  if (table.tBodies[0]?.rows.length > MOST_ROWS) filterable(table);
}
