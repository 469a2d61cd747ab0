// Tables of numbers: the weights of the units at a token, and what a head reads there.

// Of more units only the largest are shown at once.
const ROWS = 10;

// A row: a name, a bar, a number, and what may be done.
function barRow({ look, name, value, most, label, action }) {
  const bar = make("span", { class: `bar ${look}`, "aria-hidden": "true" }, make("span"));
  bar.firstChild.style.width = `${100 * Math.min(Math.abs(value) / (most || 1), 1)}%`;
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, name),
    make("td", { class: "bars" }, bar),
    make("td", { class: "number", text: label ?? twoDecimals(value) }),
    action === undefined ? null : make("td", { class: "action" }, action ?? ""),
  );
}

// A row of a share, in the colour of what is read.
function shareRow(name, value, label) {
  const look = value < 0 ? "heat negative" : "heat";
  return barRow({ look, name: make("span", {}, ...name), value, most: 1, label });
}

function barTable(caption, rows) {
  return make("table", { class: "bar-table" }, make("caption", { text: caption }), ...rows);
}

// The weights at a token, or their mean over all tokens if none is in view.
function weightTable(number, place, painting, position, removal) {
  const { weights, colours } = painting;
  const row = position === null ? weights.meanRow() : weights.row(position);
  const chosen = position !== null && place.chosen ? chosenAt(place, position) : null;
  const units = [...row.keys()];
  const most = Math.max(...row);
  const rowOf = (unit) => {
    const look = colourClass(colours, unit);
    const key = make("span", { class: `key ${look}`, "aria-hidden": "true" });
    return barRow({
      look,
      name: make("span", {}, key, unitName(place, unit)),
      value: row[unit],
      most,
      label: chosen && !chosen.includes(unit) ? "–" : undefined,
      action: removal?.(unit),
    });
  };
  const isMean = position === null && weights.rows > 1;
  const caption = isMean ? "Mean weights of all positions" : "Weights";
  if (units.length <= ROWS) return [barTable(caption, units.map(rowOf))];
  const sorted = [...units].sort((a, b) => row[b] - row[a]);
  const first = barTable(`${caption}, the largest first`, sorted.slice(0, ROWS).map(rowOf));
  const others = barTable(caption, sorted.slice(ROWS).map(rowOf));
  return [first, foldable(`units ${number}`, `The other ${sorted.length - ROWS}`, others)];
}

// How many of what is read are shown.
const READ = 5;

// What is read most, of a reading as attention.js makes it; without one as many empty rows.
function readingTable(run, reading, head, thing) {
  if (!reading) return emptyTable(`Point at a ${thing} to see what is read from there`, READ);
  const stack = run.stacks[reading.stack];
  const sizes = reading.shares.map(Math.abs);
  const order = [...reading.shares.keys()].sort((a, b) => sizes[b] - sizes[a]);
  const rows = order.slice(0, READ).map((position) => {
    const number = make("small", { text: ` ${position}` });
    const name = stack ? [tokenName(stack, position), number] : [`position ${position}`];
    return shareRow(name, reading.shares[position]);
  });
  return barTable(reading.reads ? `Read from here by ${head}` : `Reads this: ${head}`, rows);
}

// What the model takes for probable at one position, or as many empty rows.
function candidateTable(caption, candidates, length = candidates.length) {
  if (!candidates.length) return emptyTable(caption, length);
  const rows = candidates.map((each) => shareRow([`“${tokenText(each.text)}”`], each.probability));
  return barTable(caption, rows);
}

// Keeps the place of a table, so that what lies below it does not move under the pointer.
function emptyTable(caption, length) {
  const rows = Array.from({ length }, () => make("tr", {}, make("td", { text: "\u00a0" })));
  const table = barTable(caption, rows);
  table.classList.add("empty");
  return table;
}
