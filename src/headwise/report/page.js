"use strict";
// Buttons that save each table as CSV and each figure as PNG. The file is made in the page, which
// fetches nothing and sends nothing. Where no script runs, only these buttons are missing.
(() => {
  const ENLARGED = 3; // pixels of a PNG for each pixel of the figure

  const squeezed = (text) => text.replace(/\s+/g, " ").trim();

  // A figure and its details, which stand in small type, such as an interval.
  function partsOf(cell) {
    const copy = cell.cloneNode(true);
    const details = [...copy.querySelectorAll("small")];
    for (const detail of details) detail.remove();
    return [copy, ...details].map((each) => squeezed(each.textContent));
  }

  // A cell of CSV. Minus signs are those that a spreadsheet reads as such, and what begins like a
  // formula, which a name from the data may, is text.
  function quoted(text) {
    const plain = text.replace(/−(?=\d)/g, "-");
    // Also a range, or a number with its interval: `-0.5 (-1.2e+05 to +1,000)`.
    const isNumber = /^[+-]\d([\d.,%+()* -]|e[+-]|to )*$/.test(plain);
    const safe = /^[=+\-@]/.test(plain) && !isNumber ? `'${plain}` : plain;
    return `"${safe.replace(/"/g, '""')}"`;
  }

  // Each part of a cell has a column of its own, below the same header.
  function csvOf(table) {
    const [header, ...rows] = [...table.rows].map((row) => [...row.cells].map(partsOf));
    const widths = header.map((_, at) => Math.max(1, ...rows.map((row) => row[at].length)));
    const each = (at, partOf) => Array.from({ length: widths[at] }, (_, part) => partOf(part));
    const names = header.flatMap((name, at) => each(at, () => name.filter(Boolean).join(" ")));
    const lines = rows.map((row) =>
      row.flatMap((parts, at) => each(at, (part) => parts[part] ?? "")),
    );
    const csv = [names, ...lines].map((line) => line.map(quoted).join(",")).join("\r\n");
    // By the mark in front, spreadsheets know that it is UTF-8.
    return new Blob([`\ufeff${csv}\r\n`], { type: "text/csv" });
  }

  // The figure with the colours that the page has now.
  async function pngOf(figure) {
    const style = getComputedStyle(figure);
    const { width, height } = figure.viewBox.baseVal;
    const copy = figure.cloneNode(true);
    copy.setAttribute("width", ENLARGED * width);
    copy.setAttribute("height", ENLARGED * height);
    copy.style.color = style.color;
    const text = new XMLSerializer()
      .serializeToString(copy)
      .replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    const image = new Image();
    image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.width;
    canvas.height = image.height;
    const context = canvas.getContext("2d");
    context.fillStyle = style.getPropertyValue("--surface");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }

  function button(kind, title, make) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "save";
    made.textContent = kind;
    made.title = `Save as ${kind}: ${title}`;
    made.setAttribute("aria-label", made.title);
    const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 80);
    made.addEventListener("click", async () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await make());
      link.download = `${name}.${kind.toLowerCase()}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });
    return made;
  }

  for (const table of document.querySelectorAll("table")) {
    const frame = table.closest(".scroll");
    const heading = document.getElementById(table.getAttribute("aria-labelledby"));
    const title = frame.getAttribute("aria-label") ?? heading?.textContent ?? document.title;
    frame.after(button("CSV", squeezed(title), () => csvOf(table)));
  }
  for (const figure of document.querySelectorAll("figure > svg")) {
    const caption = figure.parentElement.querySelector("figcaption");
    caption.append(" ", button("PNG", squeezed(caption.textContent), () => pngOf(figure)));
  }
})();
