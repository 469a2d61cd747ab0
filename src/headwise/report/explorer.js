"use strict";
// The page of `headwise explore`. Its data are what `Explored.payload` holds: models, each with
// stacks of positions, places (an attention, and what its system decides), and outputs: as they
// are, and without each of its removals. All that is shown follows from `view`, which stands in
// the address: place, layer, head, model, token, and of each model unit.N and without.N.
const { title, says, models } = JSON.parse(document.getElementById("payload").textContent);
const COLOURS = 8; // more nobody tells apart
const ROWS = 10; // of a table; the others are folded
const SITES = {
  encoder_self: "Encoder self-attention",
  decoder_self: "Decoder self-attention",
  decoder_cross: "Decoder reads encoder",
};
let view = {};
let pointed = null; // {stack, position} at the pointer
let columns = [];

// --- small things --------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name === "style") Object.assign(made.style, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// An array of the payload, inflated when it is first asked for. Its `row` gives the numbers that
// stand at the first indices.
const arrays = new WeakMap();
function arrayOf(packed) {
  if (!arrays.has(packed)) arrays.set(packed, inflated(packed));
  return arrays.get(packed);
}

async function inflated({ shape, kind, scale, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const zero = kind === "signed root" ? 128 : 0;
  const number = (byte) => Math.sign(byte - zero) * ((byte - zero) / (zero ? 127 : 255)) ** 2;
  const table = Float32Array.from(range(256), (byte) => scale * number(byte));
  const Plain = { uint32: Uint32Array, float32: Float32Array }[kind];
  const values = new (Plain ?? Uint8Array)(buffer);
  const row = (...index) => {
    let [from, size] = [0, values.length];
    index.forEach((each, axis) => {
      size /= shape[axis];
      from += each * size;
    });
    const found = values.subarray(from, from + size);
    return Plain ? found : Float32Array.from(found, (byte) => table[byte]);
  };
  return { shape, row, signed: zero > 0 };
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

// A token as people read it; the space that it begins with is left out.
const tokenText = (token) => token.replaceAll("▁", " ").trim() || "␣";

function tokenName(stack, position) {
  const token = stack?.tokens[position] ?? `position ${position}`;
  if (stack?.word === "token") return `“${tokenText(token)}”`;
  const pixel = stack?.word === "pixel" ? position - stack.first : -1;
  return pixel < 0 ? token : `row ${Math.floor(pixel / stack.width)}, column ${pixel % stack.width}`;
}

function placeName(model, { site, layer, path }) {
  const alone = Object.keys(model.stacks).length === 1 && SITES[site];
  return site ? `${alone ? "Self-attention" : (SITES[site] ?? site)}, layer ${layer}` : path;
}

// The name of a head, with the unit whose it is: everywhere, or of those chosen at a position.
function headName(place, head, position = null) {
  if (head === null) return "all heads on average";
  const owner = place.unit === "head" ? undefined : place.owner?.[head];
  const unit = (position === null ? undefined : place.chosen?.[position]?.[head]) ?? owner;
  return unit === undefined ? `head ${head}` : `head ${head} (${place.unit} ${unit})`;
}

function removalName(model, { path, part, number }) {
  const place = model.places.find((each) => each.path === path);
  return `${placeName(model, place)}, ${part} ${number}`;
}

// --- the view ------------------------------------------------------------------------------------

// A number of the view; null if it has none, or one that is too large.
function chosen(name, most = Infinity) {
  const text = view[name] ?? "";
  return /^\d+$/.test(text) && Number(text) < most ? Number(text) : null;
}

const keyOf = (place) => place.site || place.path;
const isOpen = (number) => chosen("model", models.length) === null || chosen("model") === number;
const passOf = (number) => chosen(`without.${number}`, models[number].removals.length + 1) ?? 0;
const headOf = (place) => chosen("head", place.heads?.shape[0] ?? 0);
const placeOf = (model) =>
  model.places.find((each) => keyOf(each) === view.place && each.layer === chosen("layer"));

function tokenOf() {
  const [stack, position] = (view.token ?? "").split(":");
  return position ? { stack, position: Number(position) } : null;
}

// Changes the view; what is null is as if nobody had chosen.
function look(changes) {
  const kept = Object.entries({ ...view, ...changes }).filter(([, value]) => value !== null);
  view = Object.fromEntries(kept.map(([name, value]) => [name, String(value)]));
  try {
    history.replaceState(null, "", `#${new URLSearchParams(view)}`);
  } catch {
    // A notebook shows the page in a frame that has no address.
  }
}

// Fills in what the address leaves open, or has wrong: an attention, and a layer of it.
function settle() {
  const places = models.filter((_, number) => isOpen(number)).flatMap((model) => model.places);
  let here = places.filter((place) => keyOf(place) === view.place);
  if (!here.length) {
    const first = keyOf(places.find((place) => place.weights) ?? places[0]);
    here = places.filter((place) => keyOf(place) === first);
  }
  const layers = unique(here.map((place) => place.layer)).sort((one, other) => one - other);
  const layer = layers.includes(chosen("layer")) ? view.layer : layers[0];
  look({ place: keyOf(here[0]), layer });
  return { places, here, layers };
}

// --- choices -------------------------------------------------------------------------------------

// Buttons, or a list if they are many: `options` are {value, text, look}.
function choice(label, name, options, now, most = 16) {
  if (options.length < 2) return null;
  const choose = (value) => (look({ [name]: value }), draw());
  const said = make("span", { class: "label", text: label });
  if (options.length > most) {
    const list = make("select", { "aria-label": label, "data-focus": name });
    list.append(...options.map(({ text }) => make("option", { text })));
    list.selectedIndex = options.findIndex(({ value }) => value === now);
    list.addEventListener("change", () => choose(options[list.selectedIndex].value));
    return make("div", { class: "control" }, said, list);
  }
  const buttons = options.map(({ text, value, look = null }) =>
    make("button", {
      ...{ type: "button", text, class: look, title: `${label} ${text}` },
      ...{ "aria-pressed": String(value === now), "data-focus": `${name} ${value}` },
      onclick: () => choose(value),
    }),
  );
  const group = { class: "control", role: "group", "aria-label": label };
  return make("div", group, said, make("span", { class: "buttons" }, buttons));
}

function controls({ places, here, layers }) {
  const plain = (values) => values.map((value) => ({ value, text: String(value) }));
  const named = (text, options) => (options.length > 1 ? [{ value: null, text }, ...options] : []);
  const heads = Math.max(0, ...here.map((place) => place.heads?.shape[0] ?? 0));
  const sites = unique(places.map(keyOf)).map((value) => ({ value, text: SITES[value] ?? value }));
  const runs = models.map((model, value) => ({ value, text: model.name }));
  return make(
    "div",
    { class: "controls" },
    choice("Show", "model", named("all", runs), chosen("model", models.length)),
    choice("Attention", "place", sites, view.place),
    choice("Layer", "layer", plain(layers), chosen("layer")),
    choice("Head", "head", named("mean", plain(range(heads))), chosen("head", heads)),
  );
}

function removeButton(number, pass) {
  if (!pass) return null;
  const isOff = passOf(number) === pass;
  return make("button", {
    ...{ type: "button", class: "remove", text: isOff ? "put back" : "remove" },
    ...{ "aria-pressed": String(isOff), "data-focus": `without ${number} ${pass}` },
    onclick: () => (look({ [`without.${number}`]: isOff ? null : pass }), draw()),
  });
}

// The number of the output without a part of a place; 0 if it is not known.
const removal = (model, place, part, number) =>
  1 + model.removals.findIndex(
    (each) => each.path === place.path && each.part === part && each.number === number,
  );

// --- colours -------------------------------------------------------------------------------------

const rgbOf = (text) => [1, 3, 5].map((start) => parseInt(text.slice(start, start + 2), 16));
const colour = (name) =>
  rgbOf(getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());

// Fills a canvas, a pixel for each cell, by what `of` gives for its number: red, green, blue, and
// opacity from 0 to 1.
function fill(canvas, width, height, of) {
  Object.assign(canvas, { width, height });
  const data = new Uint8ClampedArray(4 * width * height);
  for (let cell = 0; cell < width * height; cell++) {
    const [red, green, blue, opacity = 1] = of(cell);
    data.set([red, green, blue, 255 * opacity], 4 * cell);
  }
  canvas.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
  return canvas;
}

// Weights as colours: by their root, or else what reads many a little would seem to read nothing.
function heat(most) {
  const [positive, negative] = [colour("heat"), colour("negative")];
  const strength = (share) => Math.min(1, Math.sqrt(Math.abs(share) / (most || 1)));
  return (share) => [...(share < 0 ? negative : positive), strength(share)];
}

// How each position is coloured by what its system decides; null where that decides nothing.
async function paintingOf(model, number, place) {
  if (!place.weights) return null;
  const weights = await arrayOf(place.weights);
  const [rows, units] = weights.shape;
  const positions = range(model.stacks[place.stack].tokens.length);
  const row = (position) => weights.row(rows === 1 ? 0 : position);
  const leaders = positions.map((position) => {
    const own = row(position);
    const first = own.indexOf(Math.max(...own));
    return own.lastIndexOf(own[first]) === first ? first : -1; // several have the same
  });
  const often = range(units).map((unit) => leaders.filter((each) => each === unit).length);
  const known = range(units).sort((one, other) => often[other] - often[one]).slice(0, COLOURS);
  known.sort((one, other) => one - other);
  const look = (unit) => `unit-${known.includes(unit) ? known.indexOf(unit) : "other"}`;
  const unit = chosen(`unit.${number}`, units);
  const mean = meanOf(range(rows).map(row));
  const painting = { row, rows, units, unit, look, mean, leaders };
  if (unit === null) {
    const marks = leaders.map((each) => (each < 0 ? "=" : String(each)));
    return { ...painting, marks, strengths: positions.map(() => 1), looks: leaders.map(look) };
  }
  const own = positions.map((position) => row(position)[unit]);
  const ends = [Math.min(...own), Math.max(...own)];
  const strengths = own.map((each) => (ends[0] === ends[1] ? 1 : (each - ends[0]) / (ends[1] - ends[0])));
  const marks = own.map((each) => written(each).replace(/^0/, ""));
  return { ...painting, ends, marks, strengths, looks: own.map(() => look(unit)) };
}

// --- what stands at positions: tokens, or the cells of an image or of a spectrogram --------------
// A view of a stack has an element, and can be painted, say what is read, and mark a position.

function tokensView(stack, title, act) {
  const spaced = stack.tokens.some((token) => token.startsWith("▁"));
  const tokens = stack.tokens.map((token, position) => {
    const text = make("span", { class: "text", text: tokenText(token) });
    const look = `token${spaced && !token.startsWith("▁") ? "" : " starts-word"}`;
    const attributes = { class: look, role: "option", tabindex: position ? -1 : 0 };
    return make("li", attributes, text, make("span", { class: "mark" }));
  });
  const list = make("ol", { class: "tokens", role: "listbox", "aria-label": title }, tokens);
  const on = (name, happens) =>
    list.addEventListener(name, (event) => {
      const position = tokens.indexOf(event.target.closest(".token"));
      if (position >= 0) happens(position, event);
    });
  on("pointerover", (position, event) => event.pointerType !== "touch" && act.point(position));
  list.addEventListener("pointerleave", () => act.point(null));
  on("click", (position) => act.pick(position));
  on("focusin", (position, { target }) => target.matches(":focus-visible") && act.keep(position));
  on("keydown", (position, event) => {
    const last = tokens.length - 1;
    const arrows = { ArrowLeft: position - 1, ArrowRight: position + 1, Home: 0, End: last };
    const next = { ...arrows, Enter: position }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    tokens[Math.min(Math.max(next, 0), last)].focus();
    act.keep(Math.min(Math.max(next, 0), last));
  });
  const each = (happens) => tokens.forEach((token, position) => happens(token, position));
  return {
    element: make("div", {}, make("h3", { text: title }), list),
    paint: (painting) =>
      each((token, position) => {
        token.classList.add(painting.looks[position]);
        token.lastChild.textContent = painting.marks[position];
        token.style.setProperty("--strength", painting.strengths[position]);
      }),
    read(shares) {
      list.classList.toggle("read", shares !== null);
      const most = (shares && largest(shares)) || 1;
      each((token, position) => {
        token.style.setProperty("--read", shares ? Math.abs(shares[position]) / most : 0);
        token.classList.toggle("negative", shares !== null && shares[position] < 0);
      });
    },
    mark: (here) =>
      each((token, position) => {
        token.classList.toggle("here", position === here);
        token.setAttribute("aria-selected", String(position === here));
        if (here !== null) token.tabIndex = position === here ? 0 : -1;
      }),
  };
}

// The row and the column of an area at the pointer.
function cellAt(area, event, rows, columns) {
  const box = area.getBoundingClientRect();
  const cell = (share, cells) => Math.min(cells - 1, Math.max(0, Math.floor(share * cells)));
  const row = cell((event.clientY - box.top) / box.height, rows);
  return { row, column: cell((event.clientX - box.left) / box.width, columns) };
}

function cellsView(stack, title, act) {
  const { width, height, first, tokens } = stack;
  const [below, over] = [make("canvas"), make("canvas")];
  const cursor = make("div", { class: "cursor" });
  const named = { class: `cells ${stack.word}`, tabindex: 0, role: "group", "aria-label": title };
  const area = make("div", named, below, over, cursor);
  const element = make("div", {}, make("h3", { text: title }), area);
  const at = (event) => {
    const { row, column } = cellAt(area, event, height, width);
    return first + row * width + column;
  };
  area.addEventListener("pointermove", (event) => act.point(at(event)));
  area.addEventListener("pointerleave", () => act.point(null));
  area.addEventListener("click", (event) => act.pick(at(event)));
  area.addEventListener("keydown", (event) => {
    const arrows = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width };
    if (!arrows[event.key]) return;
    event.preventDefault();
    const next = (tokenOf()?.position ?? first - 1) + arrows[event.key];
    act.keep(Math.min(Math.max(next, first), tokens.length - 1));
  });
  if (stack.word === "pixel") {
    area.style.aspectRatio = `${width} / ${height}`;
    fill(below, width, height, (cell) => rgbOf(tokens[first + cell]));
  } else {
    const kilohertz = stack.rate / 2000;
    const text = `From 0 to ${tokens.at(-1)} to the right, from 0 to ${kilohertz} kHz upwards.`;
    element.append(make("p", { class: "small", text }), soundShown(stack, below));
  }
  let painted = () => [0, 0, 0, 0];
  const cover = (of) => fill(over, width, height, (cell) => of(first + cell));
  return {
    element,
    paint({ looks, strengths }) {
      const known = Object.fromEntries(unique(looks).map((name) => [name, colour(name)]));
      painted = (position) => [...known[looks[position]], 0.65 * strengths[position]];
      cover(painted);
    },
    read(shares) {
      const of = shares && heat(largest(shares));
      cover(shares ? (position) => of(shares[position]) : painted);
    },
    mark(position) {
      cursor.hidden = position === null || position < first;
      const [row, column] = [Math.floor((position - first) / width), (position - first) % width];
      const box = { left: column / width, top: row / height, width: 1 / width, height: 1 / height };
      for (const side in box) cursor.style[side] = `${100 * box[side]}%`;
    },
  };
}

// A sound to hear, and its spectrogram on a canvas: the louder, the stronger.
function soundShown({ sound, loudness }, canvas) {
  const ink = colour("text");
  arrayOf(loudness).then(({ shape, row }) => {
    const [frames, bins] = shape;
    const all = range(frames).map((frame) => row(frame));
    const at = (cell) => all[cell % frames][bins - 1 - Math.floor(cell / frames)];
    fill(canvas, frames, bins, (cell) => [...ink, at(cell) ** 2]);
  });
  return make("audio", { controls: "", src: sound });
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

function barTable(caption, rows, look, most = ROWS) {
  const table = (some) => make("table", { class: `bars ${look}` }, some);
  const first = table([make("caption", { text: caption }), ...rows.slice(0, most)]);
  if (rows.length <= most) return first;
  const summary = make("summary", { text: `The other ${rows.length - most}` });
  return make("div", {}, first, make("details", {}, summary, table(rows.slice(most))));
}

// What the model takes for probable at a position, and what it did before something was removed.
async function probable(model, position, pass) {
  const [ids, shares] = await Promise.all([arrayOf(model.ids), arrayOf(model.shares)]);
  const before = [...ids.row(0, position)];
  return Array.from(ids.row(pass, position), (id, index) => {
    const [was, is] = [shares.row(0, position), shares.row(pass, position)[index]];
    const place = before.indexOf(id);
    const said = place < 0 ? `< ${written(was.at(-1))} → ${written(is)}` : moved(was[place], is);
    const [name, key] = [model.names[id], make("span", { class: "key" })];
    const isColour = /^#[0-9a-f]{6}$/.test(name) && model.stacks[model.over].word === "pixel";
    if (isColour) key.style.background = name;
    const text = model.kind === "classes" || isColour ? name : `“${tokenText(name)}”`;
    const isTrue = model.is_known && id === model.true[position];
    const shown = make("span", {}, isColour ? key : null, text, isTrue ? " ✓" : null);
    return barRow({ name: shown, value: is, most: 1, said });
  });
}

// --- what comes out ------------------------------------------------------------------------------

const labelled = (label, ...content) =>
  make("div", { class: "made" }, make("h3", { text: capital(label) }), ...content);

function madeShown({ label, text, picture, sound, loudness }) {
  if (picture) return labelled(label, make("img", { class: "picture", src: picture, alt: label }));
  if (!sound) return labelled(label, make("p", { text }));
  const canvas = make("canvas", { class: "spectrogram" });
  return labelled(label, canvas, soundShown({ sound, loudness }, canvas));
}

async function outputOf(model, number) {
  const pass = passOf(number);
  const loss = moved(model.losses[0], model.losses[pass], 3);
  const parts = [labelled(model.measure, make("p", { class: "loss", text: loss }))];
  if (model.numbers?.length) {
    const text = moved(model.numbers[0], model.numbers[pass], 3);
    parts.push(labelled("Output", make("p", { text })));
  }
  if (model.kind === "classes") {
    parts.push(barTable("Probability of each class", await probable(model, 0, pass), "probable"));
  }
  if (model.kind === "tokens") parts.push(await saidShown(model, pass));
  if (model.stacks[model.over].word === "frame") parts.push(await errorShown(model, pass));
  const off = pass && `Without ${removalName(model, model.removals[pass - 1])}. `;
  const told = pass ? make("p", { class: "removed" }, off, removeButton(number, pass)) : null;
  return make("div", { class: "output" }, told, model.made.map(madeShown), parts);
}

// The most probable token at each position where one is asked for, or the image of these.
async function saidShown(model, pass) {
  const [ids, real] = await Promise.all([arrayOf(model.ids), arrayOf(model.real)]);
  const stack = model.stacks[model.over];
  const asked = range(model.true.length).filter((position) => model.true[position] >= 0);
  if (stack.word === "pixel") {
    const drawn = (cell) => model.names[ids.row(pass, asked[cell])[0]];
    const of = (cell) => rgbOf(drawn(cell).startsWith("#") ? drawn(cell) : "#808080");
    const canvas = make("canvas", { class: "picture" });
    return labelled("the most probable colours", fill(canvas, stack.width, stack.height, of));
  }
  const chips = asked.map((position) => {
    const [before, now] = [ids.row(0, position)[0], ids.row(pass, position)[0]];
    const [name, is] = [model.names[now], model.names[model.true[position]]];
    const share = moved(real.row(0)[position], real.row(pass)[position], 3);
    const chip = make("span", { title: `probability of “${tokenText(is)}”: ${share}` });
    chip.textContent = tokenText(name);
    chip.className = `said${name.startsWith("▁") ? " starts-word" : ""}`;
    chip.classList.toggle("right", model.is_known && now === model.true[position]);
    chip.classList.toggle("changed", before !== now);
    return chip;
  });
  const text = `${model.is_known ? "Green: true. " : ""}Underlined: changed by the removal.`;
  const label = `the most probable ${model.is_next ? "next token at each position" : "tokens"}`;
  return labelled(label, make("p", { class: "chips" }, chips), make("p", { class: "small", text }));
}

// The error at each frame, or how much larger it is without a part.
async function errorShown(model, pass) {
  const errors = await arrayOf(model.real);
  const less = pass ? errors.row(0) : new Float32Array(errors.shape[1]);
  const shown = errors.row(pass).map((error, frame) => error - less[frame]);
  const of = heat(largest(shown));
  const canvas = make("canvas", { class: "strip" });
  fill(canvas, shown.length, 1, (frame) => of(-shown[frame]));
  const label = pass ? "change of the error at each frame (red: larger)" : "error at each frame";
  return labelled(`${label}, at most ${written(largest(shown))}`, canvas);
}

// All that can be removed, by how much the loss rises without it.
function mattersShown(model, number) {
  if (!model.removals.length) return make("p", { class: "small", text: model.note });
  const costs = model.losses.slice(1).map((loss) => loss - model.losses[0]);
  const order = range(costs.length).sort((one, other) => costs[other] - costs[one]);
  const most = largest(costs);
  const digits = most >= 0.1 ? 2 : most >= 0.01 ? 3 : 4;
  const rows = order.map((index) => {
    const value = costs[index];
    const name = removalName(model, model.removals[index]);
    const action = removeButton(number, index + 1);
    const look = value > 0 ? "worse" : "better";
    return barRow({ name, value, most, look, said: written(value, digits, "+"), action });
  });
  const parts = unique(model.removals.map(({ part }) => part)).join(" or ");
  const caption = `What matters on this input: how much the loss rises without each ${parts}`;
  return barTable(caption, rows, "matters", 6);
}

// --- maps ----------------------------------------------------------------------------------------

// What heads read, a row for each query: one head, or the mean of all.
function readsOf(heads, head) {
  const [count, queries] = heads.shape;
  const of = (query) =>
    head === null ? meanOf(range(count).map((each) => heads.row(each, query))) : heads.row(head, query);
  return range(queries).map(of);
}

// The end of a scale: the largest weight, or, of many, what one in 200 is above: the first queries
// of a causal map have few keys to share their weight among, and all else would be pale.
function endOf(rows) {
  const all = rows.flatMap((row) => Array.from(row, Math.abs)).sort((one, other) => other - one);
  return all.length < 400 ? all[0] : all[Math.floor(all.length / 200)] || all[0];
}

const drawMap = (canvas, rows, most, of = heat(most)) =>
  fill(canvas, rows[0].length, rows.length, (cell) =>
    of(rows[Math.floor(cell / rows[0].length)][cell % rows[0].length]));

// What stands at a side of a map: names, every few if they are many; of an image its pixels.
function sideOf(stack, count, side) {
  if (stack?.word === "pixel") {
    const of = (cell) => (stack.tokens[cell].startsWith("#") ? rgbOf(stack.tokens[cell]) : [0, 0, 0, 0]);
    const [width, height] = side === "top" ? [count, 1] : [1, count];
    return fill(make("canvas", { class: side }), width, height, of);
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
  const lines = ["top", "left"].flatMap((side, index) => {
    const { word, first, width, height } = sides[index] ?? {};
    if (word !== "pixel") return [];
    const of = (row) => `${(100 * (first + row * width)) / (index ? keys : queries)}%`;
    return range(height).map((row) => make("i", { class: side, style: { [side]: of(row) } }));
  });
  const area = make("div", { class: "area" }, canvas, lines, here);
  const said = make("p", { class: "small" });
  const signed = rows.some((row) => row.some((share) => share < 0));
  const tell = (text) => (said.textContent = text);
  const rest = () => tell(`Rows read, columns are read.${signed ? " Red: negative weights." : ""}`);
  area.addEventListener("pointermove", (event) => {
    const { row, column } = cellAt(area, event, queries, keys);
    const names = [tokenName(sides[0], row), tokenName(sides[1], column)];
    tell(`${names.join(" reads ")}: ${written(rows[row][column], 3)}`);
    act.point(row);
  });
  area.addEventListener("pointerleave", () => (rest(), act.point(null)));
  area.addEventListener("click", (event) => act.pick(cellAt(area, event, queries, keys).row));
  rest();
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
  return { element: make("div", {}, heading, frame, scaleOf(rows, most, signed), said), mark };
}

// The scale of a map: from 0, or from the most negative weight, to the largest.
function scaleOf(rows, most, signed) {
  const least = signed ? -most : 0;
  const shares = range(120).map((step) => least + ((most - least) * step) / 119);
  const ends = [least, (least + most) / 2, most].map((value) => written(value));
  if (rows.some((row) => largest(row) > most)) ends[2] += " or more";
  const said = make("div", { class: "ends" }, ends.map((text) => make("span", { text })));
  return make("div", { class: "scale" }, "weight", make("div", {}, drawMap(make("canvas"), [shares], most), said));
}

// All heads as small maps with one scale; a click chooses one.
function smallMaps(model, number, place, heads) {
  const all = range(heads.shape[0]).map((head) => readsOf(heads, head));
  if (all.length < 2) return null;
  const most = Math.max(...all.map(endOf));
  const shown = all.map((rows, head) => {
    const isChosen = headOf(place) === head;
    const button = make("button", {
      ...{ type: "button", class: "head", "aria-label": capital(headName(place, head)) },
      ...{ "aria-pressed": String(isChosen), "data-focus": `map ${number} ${head}` },
      onclick: () => (look({ head: isChosen ? null : head }), draw()),
    });
    button.append(drawMap(make("canvas"), rows, most), headName(place, head).replace("head ", ""));
    return make("div", {}, button, removeButton(number, removal(model, place, "head", head)));
  });
  const heading = make("h3", { text: `All ${all.length} heads, on one scale to ${written(most)}` });
  return make("div", {}, heading, make("div", { class: "heads" }, shown));
}

// --- one model -----------------------------------------------------------------------------------

function explanationOf(model, place, painting) {
  const where = make("strong", { text: `${placeName(model, place)}. ` });
  if (!painting) {
    const text = `This attention (${place.system}) adds up its heads and decides nothing: no colours.`;
    return make("p", {}, where, text);
  }
  const { word } = model.stacks[place.stack];
  const [{ unit, chosen }, { units, ends }] = [place, painting];
  const each = ends
    ? `The stronger the colour, the larger the weight of ${unit} ${painting.unit}, from ` +
      `${ends.map((end) => written(end)).join(" to ")}.`
    : `The colour of a ${word} tells which ${unit} has the largest weight there.`;
  const sentences = [
    chosen && `Each ${word} chooses ${chosen[0].length} of ${units} ${unit}s.`,
    each,
    !ends && painting.leaders.includes(-1) && "= stands where several have the same.",
    !ends && units > COLOURS && `The eight ${unit}s that have it most often are coloured.`,
    painting.rows === 1 && `There is one decision for all ${word}s.`,
  ];
  return make("p", {}, where, sentences.filter(Boolean).join(" "));
}

function legendOf(number, { unit }, painting) {
  const all = range(painting.units).map((value) => {
    return { value, text: String(value), look: `swatch ${painting.look(value)}` };
  });
  const options = [{ value: null, text: "largest weight" }, ...all];
  return choice(`Colour by ${unit}`, `unit.${number}`, options, painting.unit, 17);
}

function stackTitle(model, name) {
  if (Object.keys(model.stacks).length > 1) return `The ${name} reads`;
  return { token: "Text", pixel: "Image", frame: "Sound" }[model.stacks[name].word];
}

async function column(model, number) {
  const place = placeOf(model);
  const section = make("section", { class: "model", "aria-label": model.name });
  section.append(make("h2", { text: model.name }), await outputOf(model, number));
  section.append(mattersShown(model, number));
  if (!place) {
    section.append(make("p", { text: "This model has no attention at this place." }));
    return { element: section, show() {} };
  }
  const painting = await paintingOf(model, number, place);
  const heads = place.heads && (await arrayOf(place.heads));
  const rows = heads && readsOf(heads, headOf(place));
  const act = (stack) => ({
    point: (position) => point(position === null ? null : { stack, position }),
    pick: (position) => pick({ stack, position }),
    keep: (position) => pick({ stack, position }, true),
  });
  const views = {};
  for (const name of unique([place.keys ?? place.stack, place.stack])) {
    const stack = model.stacks[name];
    views[name] = (stack.width ? cellsView : tokensView)(stack, stackTitle(model, name), act(name));
  }
  if (painting) views[place.stack].paint(painting);
  const map = rows && largeMap(model, place, rows, act(place.stack));
  const inspector = make("div", { class: "inspector" });
  const text = `Point at a ${model.stacks[place.stack].word}: blue is what is read from there${
    Object.keys(views).length > 1 ? ", or what reads it" : ""}.`;
  const hint = make("p", { class: "small", text });
  const stacks = make("div", {}, Object.values(views).map((each) => each.element), hint);
  section.append(explanationOf(model, place, painting));
  if (painting) section.append(legendOf(number, place, painting));
  section.append(make("div", { class: "place" }, stacks, inspector));
  if (map) section.append(map.element, smallMaps(model, number, place, heads) ?? "");

  // What is read at a token: from there if it is one that reads, else by which it is read.
  function reading({ stack, position }) {
    if (stack === place.stack && rows[position]) {
      return { stack: place.keys, shares: rows[position], reads: true };
    }
    if (stack !== place.keys) return null;
    return { stack: place.stack, shares: Float32Array.from(rows, (row) => row[position]) };
  }

  function weightsTable(at) {
    const own = at === null ? painting.mean : painting.row(at);
    const order = range(own.length);
    if (own.length > ROWS) order.sort((one, other) => own[other] - own[one]);
    const shown = order.map((unit) => {
      const look = painting.look(unit);
      const key = make("span", { class: `key ${look}` });
      const isOut = at !== null && place.chosen && !place.chosen[at].includes(unit);
      const action = removeButton(number, removal(model, place, place.unit, unit));
      const row = { name: make("span", {}, key, `${place.unit} ${unit}`), value: own[unit] };
      return barRow({ ...row, most: largest(own), look, said: isOut ? "–" : undefined, action });
    });
    const isMean = at === null && painting.rows > 1;
    return barTable(isMean ? "Mean weights of all positions" : "Weights", shown, "weights");
  }

  function readingTable({ stack, shares, reads }, at) {
    const order = range(shares.length);
    order.sort((one, other) => Math.abs(shares[other]) - Math.abs(shares[one]));
    const shown = order.slice(0, 6).map((position) => {
      const small = make("small", { text: ` ${position}` });
      const name = make("span", {}, tokenName(model.stacks[stack], position), small);
      return barRow({ name, value: shares[position], most: 1 });
    });
    const name = headName(place, headOf(place), reads ? at : null);
    return barTable(`${reads ? "Read from here by" : "Reads this:"} ${name}`, shown, "reads");
  }

  // Shows what is at the token in view, if this model has one there.
  async function show() {
    const token = pointed ?? tokenOf();
    const stack = model.stacks[token?.stack];
    const here = stack && token.position < stack.tokens.length ? token : null;
    const at = here?.stack === place.stack ? here.position : null;
    const read = here && rows ? reading(here) : null;
    for (const [name, each] of Object.entries(views)) {
      each.mark(here?.stack === name ? here.position : null);
      each.read(read?.stack === name ? read.shares : null);
    }
    map?.mark(at);
    const heading = here ? capital(tokenName(stack, here.position)) : "The whole input";
    const small = here && make("small", { text: ` position ${here.position}` });
    const parts = [make("h3", {}, heading, small)];
    if (painting) parts.push(weightsTable(at));
    if (read) parts.push(readingTable(read, at));
    if (model.kind === "tokens" && here?.stack === model.over && here.position < model.true.length) {
      const caption = model.is_next ? "Probable next" : "Probable here";
      const best = await probable(model, here.position, passOf(number));
      parts.push(barTable(caption, best, "probable"));
    }
    const now = pointed ?? tokenOf();
    if (now?.stack !== token?.stack || now?.position !== token?.position) return; // gone on
    inspector.replaceChildren(...parts);
  }
  return { element: section, show };
}

// --- the page ------------------------------------------------------------------------------------

const showAll = () => Promise.all(columns.map((each) => each.show()));

function point(token) {
  pointed = token;
  return showAll();
}

// Keeps a token selected; a second click lets it go, unless it is to stay.
function pick({ stack, position }, stays = false) {
  const token = `${stack}:${position}`;
  look({ token: view.token === token && !stays ? null : token });
  return point(null);
}

let drawing = 0;
async function draw() {
  const mine = ++drawing;
  const focus = document.activeElement?.dataset?.focus;
  const bar = controls(settle());
  const open = range(models.length).filter(isOpen);
  const made = await Promise.all(open.map((number) => column(models[number], number)));
  if (mine !== drawing) return; // the reader has gone on
  columns = made;
  const text =
    "Attention to a token need not be the cause of what a model does: remove a part to see what it " +
    "is worth. What comes out without it was computed by the model itself, on this input.";
  document.getElementById("page").replaceChildren(
    make("header", {}, make("h1", { text: title }), make("p", { class: "says", text: says })),
    bar,
    make("div", { class: "models" }, made.map(({ element }) => element)),
    make("footer", { text }),
  );
  await showAll();
  if (focus) document.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
  document.documentElement.dataset.drawn = String(mine);
}

function start() {
  view = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return draw();
}

document.addEventListener("keydown", ({ key }) => key === "Escape" && (look({ token: null }), point(null)));
addEventListener("hashchange", start);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
start();
