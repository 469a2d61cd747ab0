// A map with the names of its rows and columns, drawn on a canvas: what is seen is what is saved.

const NAME = 12; // height of a name's letters, in pixels of the page
const GAP = 6; // between names and cells
const CELL = 64; // the most pixels of a cell
const ENLARGED = 3; // pixels of a saved map for each pixel of the page

// The names of positions: of a text its tokens, of a sound the times. An image has too many pixels.
function namesOf(stack, count) {
  if (stack?.kind === "image") return [];
  const name = (position) => tokenText(stack?.tokens[position] ?? String(position));
  return Array.from({ length: count }, (_, position) => name(position));
}

function fontOf() {
  return `${NAME}px ${getComputedStyle(document.body).fontFamily}`;
}

// Where cells begin and how large they are: as large as the width allows and, unless cells would
// be too small to have names, the height of the window.
function layoutOf(rowNames, columnNames, { rows, columns }, width) {
  const letters = width < 480 ? 9 : 18;
  const short = (name) => (name.length > letters ? `${name.slice(0, letters - 1)}…` : name);
  const names = { rows: rowNames.map(short), columns: columnNames.map(short) };
  const context = make("canvas").getContext("2d");
  context.font = fontOf();
  const widest = (all) => Math.max(...all.map((name) => context.measureText(name).width));
  const room = (all) => (all.length ? Math.ceil(widest(all)) + GAP : 1);
  const [left, top] = [room(names.rows), room(names.columns)];
  const high = Math.max(NAME + 2, (0.85 * innerHeight - top) / rows);
  const cell = Math.min(CELL, high, (width - left - 1) / columns);
  return { names, left, top, cell: cell < 3 ? cell : Math.floor(cell) };
}

// Draws `cells`, a canvas with a pixel for each cell. Where cells are too small, some have names.
function drawLabelled(canvas, cells, { names, left, top, cell }, ratio) {
  const [width, height] = [cell * cells.width, cell * cells.height];
  canvas.width = Math.ceil(ratio * (left + width + 1));
  canvas.height = Math.ceil(ratio * (top + height + 1));
  const context = canvas.getContext("2d");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  context.scale(ratio, ratio);
  context.fillStyle = colour("--surface");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = ratio * cell < 1;
  context.drawImage(cells, left, top, width, height);
  context.strokeStyle = colour("--line");
  context.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
  context.font = fontOf();
  context.fillStyle = colour("--text");
  context.textBaseline = "middle";
  const each = Math.ceil((NAME + 1) / cell);
  const drawn = (all) => all.map((name, at) => [name, at]).filter(([, at]) => at % each === 0);
  context.textAlign = "right";
  for (const [name, row] of drawn(names.rows)) {
    context.fillText(name, left - GAP, top + (row + 0.5) * cell);
  }
  // From the cells upwards.
  context.textAlign = "left";
  context.translate(left, top - GAP);
  context.rotate(-Math.PI / 2);
  for (const [name, column] of drawn(names.columns)) context.fillText(name, 0, (column + 0.5) * cell);
}

// Saves a canvas to a file, which the browser asks for or puts among its downloads.
function savePng(canvas, name) {
  canvas.toBlob((blob) => {
    const link = make("a", { href: URL.createObjectURL(blob), download: `${name}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }, "image/png");
}
