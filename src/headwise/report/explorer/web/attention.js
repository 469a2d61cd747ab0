// What a head reads: of one position, and of all as a matrix.

// Promises the attentions of the heads in view, one or all.
function headsInView(attention) {
  const head = headInView(attention);
  const blobs = head === null ? attention.heads : [attention.heads[head]];
  return Promise.all(blobs.map(numbersOf));
}

// What is read at a token: {stack, shares, reads}. `reads` is true if the token is a query, and
// `shares` are then those of the keys; else it is a key, and they are those of the queries.
async function readingAt(attention, token) {
  if (!attention || !token) return null;
  const heads = await headsInView(attention);
  if (token.stack === attention.queries && token.position < heads[0].rows) {
    const shares = meanOf(heads.map((head) => head.row(token.position)));
    return { stack: attention.keys, shares, reads: true };
  }
  if (token.stack === attention.keys && token.position < heads[0].columns) {
    const shares = meanOf(heads.map((head) => head.column(token.position)));
    return { stack: attention.queries, shares, reads: false };
  }
  return null;
}

// Draws queries × keys: the darker, the more a query reads of a key; in red what it subtracts.
function drawMatrix(canvas, heads) {
  const { rows, columns } = heads[0];
  const data = new Uint8ClampedArray(4 * rows * columns);
  const heat = rgbOf("--heat");
  const negative = rgbOf("--negative");
  for (let row = 0; row < rows; row++) {
    const shares = meanOf(heads.map((head) => head.row(row)));
    // By its root, or else a row that reads many keys a little would look as if it read nothing.
    shares.forEach((share, column) => {
      const colour = share < 0 ? negative : heat;
      data.set([...colour, 255 * Math.sqrt(Math.abs(share))], 4 * (row * columns + column));
    });
  }
  put(canvas, data, columns, rows);
}

// The matrix of the head in view with its tokens, and the row and the column of the token marked.
class Matrix {
  constructor(pointing) {
    this.pointing = pointing;
    this.canvas = make("canvas", { class: "matrix", tabindex: "0", role: "img" });
    this.row = make("div", { class: "matrix-row" });
    this.column = make("div", { class: "matrix-column" });
    this.cells = make("div", { class: "matrix-cells" }, this.row, this.column);
    this.plain = make("canvas"); // a pixel for each cell
    this.said = make("p", { class: "muted small" });
    const save = make("button", { type: "button", text: "Save as PNG", onclick: () => this.save() });
    const frame = make("div", { class: "matrix-frame" }, this.canvas, this.cells);
    this.element = make("div", {}, frame, make("div", { class: "below" }, save, this.said));
    // It is as large as the page allows, also when the page changes: drawn after the browser has
    // told of all changes, or else a new height would be one of them.
    const soon = () => requestAnimationFrame(() => this.fit());
    new ResizeObserver(soon).observe(this.element);
    this.cells.addEventListener("pointermove", (event) => this.at(event, "point"));
    this.cells.addEventListener("pointerleave", () => {
      this.column.hidden = true;
      this.say(null);
      pointing.point(null);
    });
    this.cells.addEventListener("click", (event) => this.at(event, "pick"));
    this.canvas.addEventListener("keydown", (event) => this.move(event));
  }

  async show(run, place, attention) {
    this.run = run;
    this.attention = attention;
    const head = headInView(attention);
    const [rows, columns] = attention.heads[0].shape;
    this.name = `${run.name} ${placeName(run, place)} ${headName(place, attention, head)}`;
    this.canvas.setAttribute(
      "aria-label",
      `Attention matrix of ${headName(place, attention, head)}: ${rows} rows that read, ` +
        `${columns} columns that are read. Arrows up and down go through the rows.`,
    );
    const heads = await headsInView(attention);
    if (this.attention !== attention || headInView(attention) !== head) return;
    this.heads = heads;
    drawMatrix(this.plain, heads);
    this.width = null;
    this.fit();
    this.column.hidden = true;
    this.mark(tokenInView());
    this.say(null);
  }

  // Draws it anew for the width that there is now; not yet where it is not in the page.
  fit() {
    const width = this.element.clientWidth;
    if (!this.heads || !width || width === this.width) return;
    this.width = width;
    const { rows, columns } = this.heads[0];
    const { queries, keys } = this.attention;
    const names = [namesOf(this.run.stacks[queries], rows), namesOf(this.run.stacks[keys], columns)];
    this.layout = layoutOf(...names, this.heads[0], width);
    const { left, top, cell } = this.layout;
    drawLabelled(this.canvas, this.plain, this.layout, devicePixelRatio);
    this.canvas.style.width = `${this.canvas.width / devicePixelRatio}px`;
    Object.assign(this.cells.style, {
      left: `${left}px`,
      top: `${top}px`,
      width: `${cell * columns}px`,
      height: `${cell * rows}px`,
    });
  }

  save() {
    const canvas = make("canvas");
    drawLabelled(canvas, this.plain, this.layout, ENLARGED);
    savePng(canvas, this.name.replace(/[^\p{L}\p{N}]+/gu, "-"));
  }

  at(event, what) {
    if (!this.heads) return;
    const { rows, columns } = this.heads[0];
    const { row, column } = cellAt(this.cells, event, rows, columns);
    this.pointing[what]({ stack: this.attention.queries, position: row });
    this.column.hidden = false;
    putAt(this.column, "left", "width", column, columns);
    this.say({ row, column });
  }

  move(event) {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step || !this.heads) return;
    event.preventDefault();
    const { queries } = this.attention;
    const here = view.token?.stack === queries ? view.token.position : -step;
    const position = Math.min(Math.max(here + step, 0), this.heads[0].rows - 1);
    this.pointing.pick({ stack: queries, position }, { again: true });
  }

  mark(token) {
    const there = this.heads && token?.stack === this.attention.queries;
    this.row.hidden = !there || token.position >= this.heads[0].rows;
    if (!this.row.hidden) putAt(this.row, "top", "height", token.position, this.heads[0].rows);
  }

  say(cell) {
    if (!cell) {
      const signed = this.attention.heads.some((head) => head.zero > 0);
      this.said.textContent = `Rows read, columns are read.${signed ? " Red: negative weights." : ""}`;
      return;
    }
    const share = meanOf(this.heads.map((head) => head.row(cell.row)))[cell.column];
    const { queries, keys } = this.attention;
    const name = (stack, position) =>
      stack === null ? `position ${position}` : tokenName(this.run.stacks[stack], position);
    this.said.textContent = `${name(queries, cell.row)} reads ${name(keys, cell.column)}: ${twoDecimals(share)}`;
  }
}

// All heads of an attention at once: small matrices, of which each is a button that chooses it.
//
// Args: the number of the run, its place, the attention, and `look`, which changes the view.
function allHeads(number, place, attention, look) {
  if (attention.heads.length < 2) return null;
  const heads = make("div", { class: "all-heads" });
  const title = `All ${attention.heads.length} heads`;
  const details = foldable(`heads ${number}`, title, heads);
  // Drawn when they are asked for.
  const draw = () => {
    if (!details.open || heads.children.length) return;
    heads.append(
      ...attention.heads.map((_, head) => headButton(number, place, attention, head, look)),
    );
  };
  details.addEventListener("toggle", draw);
  draw();
  return details;
}

function headButton(number, place, attention, head, look) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const name = capital(headName(place, attention, head));
  const chosen = view.head === head;
  numbersOf(attention.heads[head]).then((numbers) => drawMatrix(canvas, [numbers]));
  return make(
    "button",
    {
      type: "button",
      title: name,
      "aria-label": name,
      "aria-pressed": String(chosen),
      "data-focus": `head ${number} ${head}`,
      onclick: () => look({ head: chosen ? null : head }),
    },
    canvas,
    make("span", { text: String(head) }),
  );
}
