"use strict";
// The page of `headwise explore`. Its data are what `ExplorerPage.payload` holds: models, each with
// stacks of positions, places (an attention, and what its system decides), and outputs: as they
// are, and without each of its removals. All that is shown follows from `view`.
const { models } = JSON.parse(document.getElementById("payload").textContent);
const COLOURS = 8; // more nobody tells apart
const SITES = {
  encoder_self: "Encoder self-attention",
  decoder_self: "Decoder self-attention",
  decoder_cross: "Decoder reads encoder",
};
// A token is {stack, position}; `without` has the number of a model to that of its removal, from 1.
const view = { place: null, layer: null, head: null, token: null, without: {} };
let pointed = null; // {stack, position} at the pointer
let columns = []; // of each model its element, and how it shows a token

// --- small things --------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const range = (length) => Array.from({ length }, (_, index) => index);
const unique = (values) => [...new Set(values)];
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
const written = (value, digits = 2, sign = "") =>
  `${value > 0 ? sign : ""}${value.toFixed(digits)}`.replace("-", "−");
const moved = (before, now, digits = 2) =>
  unique([before, now].map((value) => written(value, digits))).join(" → ");

function meanOf(rows) {
  const mean = new Float32Array(rows[0].length);
  for (const row of rows) row.forEach((value, index) => (mean[index] += value / rows.length));
  return mean;
}

// Inflates an array of the payload. Its `row` gives the numbers that stand at the first indices.
async function inflated({ shape, kind, scale, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const number = (byte) => scale * Math.sign(byte - 128) * ((byte - 128) / 127) ** 2;
  const arrays = { root: Uint8Array, uint32: Uint32Array, float32: Float32Array };
  const values = new arrays[kind](buffer);
  const row = (...index) => {
    const size = shape.slice(index.length).reduce((product, length) => product * length, 1);
    const start = size * index.reduce((sum, place, axis) => sum * shape[axis] + place, 0);
    const packed = values.subarray(start, start + size);
    return kind === "root" ? Float32Array.from(packed, number) : packed;
  };
  return { shape, row };
}

// --- names ---------------------------------------------------------------------------------------

// A token as people read it; the space that it begins with is left out.
const tokenText = (token) => token.replaceAll("▁", " ").trim() || "␣";

function tokenName(stack, position) {
  const token = stack?.tokens[position] ?? `position ${position}`;
  if (stack?.word === "token") return `“${tokenText(token)}”`;
  const pixel = stack?.word === "pixel" ? position - stack.first : -1;
  return pixel < 0 ? token : `row ${Math.floor(pixel / stack.width)}, column ${pixel % stack.width}`;
}

const placeName = ({ site, layer, path }) => (site ? `${SITES[site] ?? site}, layer ${layer}` : path);

// The name of a head, with the unit whose it is: everywhere, or of those chosen at a position.
function headName(place, head, position = null) {
  if (head === null) return "all heads on average";
  const unit = place.owner?.[head] ?? place.chosen?.[position]?.[head];
  return unit === undefined ? `head ${head}` : `head ${head} (${place.unit} ${unit})`;
}

const removalName = (model, { path, part, number }) =>
  `${placeName(model.places.find((place) => place.path === path))}, ${part} ${number}`;

// --- the view ------------------------------------------------------------------------------------

const keyOf = (place) => place.site || place.path;
const passOf = (number) => view.without[number] ?? 0;
const headOf = (place) => (view.head < place.heads?.shape[0] ? view.head : null);

// A row of buttons for a key of the view: `options` are {value, text}.
function choice(label, name, options) {
  if (options.length < 2) return null;
  const now = options.find(({ value }) => value === view[name]) ?? options[0];
  const buttons = options.map((option) =>
    make("button", {
      ...{ type: "button", text: option.text, "data-focus": `${name} ${option.value}` },
      "aria-pressed": String(option === now),
      onclick: () => ((view[name] = option.value), draw()),
    }),
  );
  const group = { class: "control", role: "group", "aria-label": label };
  const heading = make("span", { class: "label", text: label });
  return make("div", group, heading, make("span", { class: "buttons" }, buttons));
}

// All choices. What is not chosen, or is not there any more, becomes the first there is.
function controls() {
  const places = models.flatMap((model) => model.places);
  view.place ??= keyOf(places.find((place) => place.weights) ?? places[0]);
  const here = places.filter((place) => keyOf(place) === view.place);
  const layers = unique(here.map(({ layer }) => layer)).sort((one, other) => one - other);
  if (!layers.includes(view.layer)) view.layer = layers[0];
  const options = (values) => values.map((value) => ({ value, text: SITES[value] ?? value }));
  const heads = Math.max(0, ...here.map((place) => place.heads?.shape[0] ?? 0));
  const site = choice("Attention", "place", options(unique(places.map(keyOf))));
  const layer = choice("Layer", "layer", options(layers));
  const head = choice("Head", "head", [{ value: null, text: "mean" }, ...options(range(heads))]);
  return make("div", { class: "controls" }, site, layer, head);
}

function removeButton(number, pass) {
  if (!pass) return null;
  const isOff = passOf(number) === pass;
  return make("button", {
    ...{ type: "button", class: "remove", text: isOff ? "put back" : "remove" },
    ...{ "aria-pressed": String(isOff), "data-focus": `without ${number} ${pass}` },
    onclick: () => ((view.without[number] = isOff ? 0 : pass), draw()),
  });
}

// The number of the output without a part of a place; 0 if it is not known.
const removal = (model, place, part, number) =>
  1 + model.removals.findIndex(
    (each) => each.path === place.path && each.part === part && each.number === number,
  );

// --- colours -------------------------------------------------------------------------------------

// Red, green and blue of a colour; what is none, such as <bos>, is transparent.
const rgbOf = (text) =>
  text.startsWith("#") ? text.match(/\w\w/g).map((pair) => parseInt(pair, 16)) : [0, 0, 0, 0];
const colour = (name) =>
  rgbOf(getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());

// Fills a canvas, a pixel for each cell, by what `rgba` gives for its number: red, green, blue, and
// opacity from 0 to 1.
function fill(canvas, width, height, rgba) {
  Object.assign(canvas, { width, height });
  const data = new Uint8ClampedArray(4 * width * height);
  for (let cell = 0; cell < width * height; cell++) {
    const [red, green, blue, opacity = 1] = rgba(cell);
    data.set([red, green, blue, 255 * opacity], 4 * cell);
  }
  canvas.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
  return canvas;
}

// How strong the colour of a weight is: by its root, or else what reads many a little would seem to
// read nothing.
const strength = (share, most) => Math.min(1, Math.sqrt(Math.abs(share) / (most || 1)));

// Which unit has the largest weight at each position; null where a system decides nothing.
function paintingOf(model, { weights, stack }) {
  if (!weights) return null;
  const [rows, units] = weights.shape;
  const row = (position) => weights.row(rows === 1 ? 0 : position);
  const leaders = model.stacks[stack].tokens.map((_, position) => {
    const values = row(position);
    const first = values.indexOf(Math.max(...values));
    return values.lastIndexOf(values[first]) === first ? first : -1; // several have the same
  });
  const often = range(units).map((unit) => leaders.filter((each) => each === unit).length);
  const known = range(units).sort((one, other) => often[other] - often[one]).slice(0, COLOURS);
  known.sort((one, other) => one - other); // of few units each has the same colour everywhere
  const look = (unit) => `unit-${known.includes(unit) ? known.indexOf(unit) : "other"}`;
  return { row, rows, units, look, leaders, mean: meanOf(range(rows).map(row)) };
}

// --- what stands at positions: tokens, or the cells of an image ----------------------------------

function stackView(stack, title, painting, act) {
  const spaced = stack.tokens.some((token) => token.startsWith("▁"));
  const first = stack.first ?? 0; // what stands before the picture is no part of it
  const items = stack.tokens.map((token, position) => {
    const leader = painting?.leaders[position];
    const look = painting ? painting.look(leader) : "";
    const startsWord = !spaced || token.startsWith("▁") ? "starts-word" : "";
    const item = make("li", {
      ...{ class: `token ${look} ${startsWord}`, role: "option", tabindex: -1 },
      ...{ "aria-label": tokenName(stack, position), hidden: position < first ? "" : null },
    });
    if (stack.width) return item;
    item.append(make("span", { class: "text", text: tokenText(token) }));
    if (painting) item.append(make("span", { class: "mark", text: leader < 0 ? "=" : leader }));
    return item;
  });
  const kind = { class: `tokens ${stack.word}s`, role: "listbox", "aria-label": title };
  const columns = stack.width ? { gridTemplateColumns: `repeat(${stack.width}, 1fr)` } : {};
  const list = make("ol", { ...kind, style: columns }, items);
  const on = (name, handle) =>
    list.addEventListener(name, (event) => {
      const position = items.indexOf(event.target.closest(".token"));
      if (position >= 0) handle(position, event);
    });
  on("pointerover", (position, event) => event.pointerType !== "touch" && act.point(position));
  list.addEventListener("pointerleave", () => act.point(null));
  on("click", (position) => act.pick(position));
  on("focusin", (position, { target }) => target.matches(":focus-visible") && act.keep(position));
  on("keydown", (position, event) => {
    const line = stack.height > 1 ? stack.width : 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -line, ArrowDown: line }[event.key];
    if (!step) return;
    event.preventDefault();
    items[Math.min(Math.max(position + step, first), items.length - 1)].focus();
  });
  const heading = make("h3", { text: title });
  return {
    element: make("div", {}, heading, stack.width ? overPicture(stack, list) : list),
    read(shares) {
      list.classList.toggle("read", shares !== null);
      const most = shares && largest(shares);
      items.forEach((item, position) => {
        item.style.setProperty("--read", shares ? strength(shares[position], most) : 0);
        item.classList.toggle("negative", shares !== null && shares[position] < 0);
      });
    },
    mark: (here) =>
      items.forEach((item, position) => {
        item.classList.toggle("here", position === here);
        item.setAttribute("aria-selected", String(position === here));
        item.tabIndex = position === (here === null ? first : Math.max(here, first)) ? 0 : -1;
      }),
  };
}

// The cells of a picture over it.
function overPicture({ picture, width, height }, list) {
  const style = { aspectRatio: `${width} / ${height}` };
  return make("div", { class: "cells", style }, make("img", { src: picture, alt: "" }), list);
}

// --- tables --------------------------------------------------------------------------------------

function barRow({ name, value, most, look = "heat", said, action = null }) {
  const width = `${100 * Math.min(1, Math.abs(value) / (most || 1))}%`;
  const bar = make("span", { class: `bar ${look} ${value < 0 ? "negative" : ""}` });
  bar.append(make("i", { style: { width } }));
  const cells = [make("th", { scope: "row" }, name), make("td", {}, bar)];
  cells.push(make("td", { class: "number", text: said ?? written(value) }));
  return make("tr", {}, cells, action && make("td", { class: "action" }, action));
}

// A table of which the first rows are shown, and the others when they are asked for.
function barTable(caption, rows, look, most = 10) {
  const table = (content) => make("table", { class: `bars ${look}` }, content);
  const first = table([make("caption", { text: caption }), ...rows.slice(0, most)]);
  if (rows.length <= most) return first;
  const summary = make("summary", { text: `The other ${rows.length - most}` });
  return make("div", {}, first, make("details", {}, summary, table(rows.slice(most))));
}

// What the model takes for probable at a position, and what it did before something was removed.
function probable({ ids, shares, ...model }, position, pass) {
  const before = [...ids.row(0, position)];
  return Array.from(ids.row(pass, position), (id, index) => {
    const [was, is] = [shares.row(0, position), shares.row(pass, position)[index]];
    const place = before.indexOf(id);
    const said = place < 0 ? `< ${written(was.at(-1))} → ${written(is)}` : moved(was[place], is);
    const name = model.names[id];
    const isColour = model.stacks[model.over].word === "pixel";
    const key = isColour ? make("span", { class: "key", style: { background: name } }) : null;
    const text = model.kind === "classes" || isColour ? name : `“${tokenText(name)}”`;
    const isTrue = model.is_known && id === model.true[position];
    const shown = make("span", {}, key, text, isTrue ? " ✓" : null);
    return barRow({ name: shown, value: is, most: 1, said });
  });
}

// --- what comes out ------------------------------------------------------------------------------

const labelled = (label, ...content) =>
  make("div", { class: "made" }, make("h3", { text: capital(label) }), ...content);

function outputOf(model, number) {
  const pass = passOf(number);
  const loss = moved(model.losses[0], model.losses[pass], 3);
  const parts = [labelled(model.measure, make("p", { class: "loss", text: loss }))];
  if (model.numbers?.length) {
    const text = moved(model.numbers[0], model.numbers[pass], 3);
    parts.push(labelled("Output", make("p", { text })));
  }
  if (model.kind === "classes") {
    parts.push(barTable("Probability of each class", probable(model, 0, pass), "probable"));
  }
  if (model.kind === "tokens") parts.push(predictionView(model, pass));
  const removed = pass && `Without ${removalName(model, model.removals[pass - 1])}. ` +
    "Weights, maps and translation are those of the whole model. ";
  const note = pass ? make("p", { class: "removed" }, removed, removeButton(number, pass)) : null;
  const { translation } = model;
  if (translation) parts.unshift(labelled("translation", make("p", { text: translation })));
  return make("div", { class: "output" }, note, parts);
}

// The most probable token at each position where one is asked for, or the image of these.
function predictionView(model, pass) {
  const stack = model.stacks[model.over];
  const asked = range(model.true.length).filter((position) => model.true[position] >= 0);
  const best = (position, number) => model.ids.row(number, position)[0];
  if (stack.word === "pixel") {
    const rgba = (cell) => rgbOf(model.names[best(asked[cell], pass)]);
    const canvas = make("canvas", { class: "picture" });
    return labelled("the most probable colours", fill(canvas, stack.width, stack.height, rgba));
  }
  const chips = asked.map((position) => {
    const name = model.names[best(position, pass)];
    const chip = make("span", { class: "said", text: tokenText(name) });
    chip.classList.toggle("starts-word", name.startsWith("▁"));
    chip.classList.toggle("right", model.is_known && best(position, pass) === model.true[position]);
    chip.classList.toggle("changed", best(position, pass) !== best(position, 0));
    return chip;
  });
  const text = `${model.is_known ? "Green: true. " : ""}${pass ? "Underlined: changed by the removal." : ""}`;
  const next = "next token, at each position after the text up to there";
  const label = `the most probable ${model.is_next ? next : "tokens"}`;
  return labelled(label, make("p", { class: "chips" }, chips), make("p", { class: "small", text }));
}

// All that can be removed, by how much the loss rises without it.
function removalTable(model, number) {
  if (!model.removals.length) return "";
  const costs = model.losses.slice(1).map((loss) => loss - model.losses[0]);
  const order = range(costs.length).sort((one, other) => costs[other] - costs[one]);
  const most = largest(costs);
  const digits = most >= 0.1 ? 2 : most >= 0.01 ? 3 : 4;
  const rows = order.map((index) => {
    const [value, action] = [costs[index], removeButton(number, index + 1)];
    const [look, said] = [value > 0 ? "worse" : "better", written(value, digits, "+")];
    return barRow({ name: removalName(model, model.removals[index]), value, most, look, said, action });
  });
  const parts = unique(model.removals.map(({ part }) => part)).join(" or ");
  const caption = `What matters on this input: how much the loss rises without each ${parts}`;
  return barTable(caption, rows, "matters", 6);
}

// --- maps ----------------------------------------------------------------------------------------

// What heads read, a row for each query: one head, or the mean of all.
function readsOf(heads, head) {
  const [count, queries] = heads.shape;
  const row = (query) =>
    head === null ? meanOf(range(count).map((each) => heads.row(each, query))) : heads.row(head, query);
  return range(queries).map(row);
}

// The end of a scale: the largest weight, or, of many, what one in 200 is above: the first queries
// of a causal map have few keys to share their weight among, and all else would be pale.
function endOf(rows) {
  const all = rows.flatMap((row) => Array.from(row, Math.abs)).sort((one, other) => other - one);
  return all.length < 400 ? all[0] : all[Math.floor(all.length / 200)] || all[0];
}

function drawMap(canvas, rows, most) {
  const [positive, negative, keys] = [colour("heat"), colour("negative"), rows[0].length];
  return fill(canvas, keys, rows.length, (cell) => {
    const share = rows[Math.floor(cell / keys)][cell % keys];
    return [...(share < 0 ? negative : positive), strength(share, most)];
  });
}

// What stands at a side of a map: names, every few if they are many; of an image its pixels.
function sideOf(stack, count, side) {
  if (stack?.word === "pixel") {
    const [width, height] = side === "top" ? [count, 1] : [1, count];
    return fill(make("canvas", { class: side }), width, height, (cell) => rgbOf(stack.tokens[cell]));
  }
  const every = Math.ceil(count / (innerWidth < 620 ? 22 : 55));
  const text = (position) => {
    const token = stack?.tokens[position] ?? String(position);
    return position % every ? "" : stack?.word === "token" ? tokenText(token) : token;
  };
  const names = range(count).map((position) => make("span", { text: text(position) }));
  return make("div", { class: side }, names);
}

// The large map: a row for each position that reads, a column for each that is read.
function largeMap(model, place, rows, act) {
  const [queries, keys, head] = [rows.length, rows[0].length, headOf(place)];
  const sides = [model.stacks[place.stack], model.stacks[place.keys]];
  const most = endOf(rows);
  const canvas = drawMap(make("canvas", { class: "matrix" }), rows, most);
  const here = make("div", { class: "row" });
  const area = make("div", { class: "area" }, canvas, here);
  const isSigned = rows.some((row) => row.some((share) => share < 0));
  const text = `Each row is a position that reads; the darker a column, the more it reads there.${isSigned ? " Red: negative weights." : ""}`;
  const said = make("p", { class: "small", text });
  const cellAt = (event) => {
    const box = area.getBoundingClientRect();
    const cell = (share, cells) => Math.min(cells - 1, Math.max(0, Math.floor(share * cells)));
    const row = cell((event.clientY - box.top) / box.height, queries);
    return [row, cell((event.clientX - box.left) / box.width, keys)];
  };
  area.addEventListener("pointermove", (event) => {
    const [row, column] = cellAt(event);
    const names = [tokenName(sides[0], row), tokenName(sides[1], column)];
    said.textContent = `${names.join(" reads ")}: ${written(rows[row][column], 3)}`;
    act.point(row);
  });
  area.addEventListener("pointerleave", () => ((said.textContent = text), act.point(null)));
  area.addEventListener("click", (event) => act.pick(cellAt(event)[0]));
  const high = `max(${Math.min(keys, 60) * 12}px, ${(85 * keys) / queries}vh)`;
  const frame = make("div", { class: "frame" }, sideOf(sides[1], keys, "top"));
  frame.append(sideOf(sides[0], queries, "left"), area);
  frame.style.gridTemplateColumns = `auto minmax(0, min(${48 * keys}px, ${high}))`;
  area.style.aspectRatio = `${keys} / ${queries}`;
  const heading = make("h3", { text: `What ${headName(place, head)} read${head === null ? "" : "s"}` });
  const mark = (position) => {
    here.hidden = position === null;
    Object.assign(here.style, { top: `${(100 * position) / queries}%`, height: `${100 / queries}%` });
  };
  return { element: make("div", {}, heading, frame, scaleOf(rows, most, isSigned), said), mark };
}

// The scale of a map: from 0, or from the most negative weight, to the largest.
function scaleOf(rows, most, isSigned) {
  const least = isSigned ? -most : 0;
  const shares = range(120).map((step) => least + ((most - least) * step) / 119);
  const ends = [least, (least + most) / 2, most].map((value) => written(value));
  if (rows.some((row) => largest(row) > most)) ends[2] += " or more";
  const said = make("div", { class: "ends" }, ends.map((text) => make("span", { text })));
  const canvas = drawMap(make("canvas"), [shares], most);
  return make("div", { class: "scale" }, "weight", make("div", {}, canvas, said));
}

// All heads as small maps with one scale; a click chooses one.
function smallMaps(model, number, place) {
  const all = range(place.heads.shape[0]).map((head) => readsOf(place.heads, head));
  if (all.length < 2) return "";
  const most = Math.max(...all.map(endOf));
  const shown = all.map((rows, head) => {
    const isChosen = headOf(place) === head;
    const button = make("button", {
      ...{ type: "button", class: "head", "aria-label": capital(headName(place, head)) },
      ...{ "aria-pressed": String(isChosen), "data-focus": `map ${number} ${head}` },
      onclick: () => ((view.head = isChosen ? null : head), draw()),
    });
    button.append(drawMap(make("canvas"), rows, most), headName(place, head).replace("head ", ""));
    return make("div", {}, button, removeButton(number, removal(model, place, "head", head)));
  });
  const heading = make("h3", { text: `All ${all.length} heads, on one scale to ${written(most)}` });
  return make("div", {}, heading, make("div", { class: "heads" }, shown));
}

// --- one model -----------------------------------------------------------------------------------

function explanationOf({ word }, place, painting) {
  const where = make("strong", { text: `${placeName(place)}. ` });
  if (!painting) return make("p", {}, where, `The system ${place.system} decides nothing: no colours.`);
  const what = `The colour of a ${word} tells which ${place.unit} has the largest weight there`;
  return make("p", {}, where, `${what} (= where several have the same).`);
}

function column(model, number) {
  const section = make("section", { class: "model", "aria-label": model.name });
  section.append(make("h2", { text: model.name }), outputOf(model, number));
  section.append(removalTable(model, number));
  const isHere = (each) => keyOf(each) === view.place && each.layer === view.layer;
  const place = model.places.find(isHere);
  if (!place) {
    section.append(make("p", { text: "This model has no attention at this place." }));
    return { element: section, show() {} };
  }
  const painting = paintingOf(model, place);
  const rows = place.heads && readsOf(place.heads, headOf(place));
  const act = (stack) => ({
    point: (position) => point(position === null ? null : { stack, position }),
    pick: (position) => pick({ stack, position }),
    keep: (position) => pick({ stack, position }, true),
  });
  const views = {};
  for (const name of unique([place.keys ?? place.stack, place.stack])) {
    const title = Object.keys(model.stacks).length > 1 ? `The ${name} reads` : "Input";
    views[name] = stackView(model.stacks[name], title, name === place.stack ? painting : null, act(name));
  }
  const map = rows && largeMap(model, place, rows, act(place.stack));
  const inspector = make("div", { class: "inspector" });
  const text = `Point at a ${model.stacks[place.stack].word}: blue is what is read from there.`;
  const hint = make("p", { class: "small", text });
  const stacks = make("div", {}, Object.values(views).map((each) => each.element), hint);
  section.append(explanationOf(model.stacks[place.stack], place, painting));
  section.append(make("div", { class: "place" }, stacks, inspector));
  if (map) section.append(map.element, smallMaps(model, number, place));

  // What is read at a token: from there if it is one that reads, else by which it is read.
  function reading({ stack, position }) {
    if (stack === place.stack && rows[position]) {
      return { stack: place.keys, shares: rows[position], reads: true };
    }
    if (stack !== place.keys) return null;
    return { stack: place.stack, shares: Float32Array.from(rows, (row) => row[position]) };
  }

  function weightsTable(position) {
    const weights = position === null ? painting.mean : painting.row(position);
    const order = range(weights.length);
    if (weights.length > COLOURS) order.sort((one, other) => weights[other] - weights[one]);
    const shown = order.map((unit) => {
      const look = painting.look(unit);
      const key = make("span", { class: `key ${look}` });
      const isOut = position !== null && place.chosen && !place.chosen[position].includes(unit);
      const action = removeButton(number, removal(model, place, place.unit, unit));
      const row = { name: make("span", {}, key, `${place.unit} ${unit}`), value: weights[unit] };
      return barRow({ ...row, most: largest(weights), look, said: isOut ? "–" : undefined, action });
    });
    const isMean = position === null && painting.rows > 1;
    return barTable(isMean ? "Mean weights of all positions" : "Weights", shown, "weights");
  }

  function readingTable({ stack, shares, reads }, query) {
    const order = range(shares.length);
    order.sort((one, other) => Math.abs(shares[other]) - Math.abs(shares[one]));
    const shown = order.slice(0, 6).map((position) => {
      const small = make("small", { text: ` ${position}` });
      const name = make("span", {}, tokenName(model.stacks[stack], position), small);
      return barRow({ name, value: shares[position], most: 1 });
    });
    const name = headName(place, headOf(place), reads ? query : null);
    return barTable(`${reads ? "Read from here by" : "Reads this:"} ${name}`, shown, "reads");
  }

  // Shows what is at the token in view, if this model has one there.
  function show() {
    const token = pointed ?? view.token;
    const stack = model.stacks[token?.stack];
    const here = stack && token.position < stack.tokens.length ? token : null;
    const position = here?.stack === place.stack ? here.position : null;
    const read = here && rows ? reading(here) : null;
    for (const [name, each] of Object.entries(views)) {
      each.mark(here?.stack === name ? here.position : null);
      each.read(read?.stack === name ? read.shares : null);
    }
    map?.mark(position);
    const heading = here ? capital(tokenName(stack, here.position)) : "The whole input";
    const small = here && make("small", { text: ` position ${here.position}` });
    const parts = [make("h3", {}, heading, small)];
    if (painting) parts.push(weightsTable(position));
    if (read) parts.push(readingTable(read, position));
    if (model.kind === "tokens" && here?.stack === model.over) {
      const best = probable(model, here.position, passOf(number));
      parts.push(barTable(model.is_next ? "Probable next" : "Probable here", best, "probable"));
    }
    inspector.replaceChildren(...parts);
  }
  return { element: section, show };
}

// --- the page ------------------------------------------------------------------------------------

function point(token) {
  pointed = token;
  for (const each of columns) each.show();
}

// Keeps a token selected; a second click lets it go, unless it is to stay.
function pick(token, stays = false) {
  const isSame = view.token?.stack === token.stack && view.token.position === token.position;
  view.token = isSame && !stays ? null : token;
  point(null);
}

function draw() {
  const focus = document.activeElement?.dataset?.focus;
  const bar = controls();
  columns = models.map(column);
  const all = make("div", { class: "models" }, columns.map(({ element }) => element));
  document.getElementById("page").replaceChildren(bar, all);
  point(null);
  if (focus) document.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
}

async function start() {
  for (const holder of models.flatMap((model) => [model, ...model.places])) {
    for (const name of ["ids", "shares", "weights", "heads"]) {
      if (holder[name]) holder[name] = await inflated(holder[name]);
    }
  }
  draw();
  document.documentElement.dataset.drawn = "";
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
start();
