"use strict";
// The page of `headwise explore`. Its data are what `Explored.payload` holds: models, each with its
// stacks of positions, its places (an attention, and what its system decides), and its outputs: as
// it is, and without each of its removals. All that is shown follows from `view`.
const { title, says, models } = JSON.parse(document.getElementById("payload").textContent);
const COLOURS = 8; // more nobody tells apart
const ROWS = 10; // of a table, the others are folded
const SITES = {
  encoder_self: "Encoder self-attention",
  decoder_self: "Decoder self-attention",
  decoder_cross: "Decoder reads the encoder",
};
const view = {
  place: null, // a site, or the path of a system that no model has placed
  layer: null,
  head: null, // null: the mean of all heads
  units: [], // of each model the unit whose weight is the colour; null: the one of largest weight
  without: [], // of each model the number of the removal that is in force; null: none
  model: null, // the only one that is shown; null: all
  token: null, // {stack, position} that was picked
};
let pointed = null; // {stack, position} at the pointer
let columns = [];

// --- small things --------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// An array of the payload, inflated when it is first asked for. `row` gives what stands at the
// first indices as numbers.
const arrays = new WeakMap();
function arrayOf(packed) {
  if (!arrays.has(packed)) arrays.set(packed, inflated(packed));
  return arrays.get(packed);
}

async function inflated({ shape, kind, scale, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const signed = kind === "signed root";
  const number = (byte) => (signed ? Math.sign(byte - 128) * ((byte - 128) / 127) ** 2 : (byte / 255) ** 2);
  const table = Float32Array.from({ length: 256 }, (_, byte) => scale * number(byte));
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
  return { shape, row, signed };
}

const range = (length) => Array.from({ length }, (_, index) => index);
const unique = (values) => [...new Set(values)];
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const written = (value, digits = 2, sign = "") =>
  `${value > 0 ? sign : ""}${value.toFixed(digits)}`.replace("-", "−");
const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

function meanRow(rows) {
  const mean = new Float32Array(rows[0].length);
  for (const row of rows) row.forEach((value, index) => (mean[index] += value / rows.length));
  return mean;
}

// A token as people read it. A space that it begins with is shown by the space before it.
function tokenText(token) {
  return token.replaceAll("▁", " ").trim() || "␣";
}

function tokenName(stack, position) {
  const token = stack.tokens[position];
  if (stack.word === "frame") return token;
  if (stack.word !== "pixel") return `“${tokenText(token)}”`;
  const pixel = position - stack.first;
  if (pixel < 0) return token;
  return `row ${Math.floor(pixel / stack.width)}, column ${pixel % stack.width}`;
}

function siteTitle(model, site) {
  if (SITES[site] && Object.keys(model.stacks).length === 1) return "Self-attention";
  return SITES[site] ?? site;
}

const keyOf = (place) => place.site || place.path;
const placeOf = (model) =>
  model.places.find((each) => keyOf(each) === view.place && each.layer === view.layer) ?? null;
const headOf = (place) =>
  view.head !== null && place.heads && view.head < place.heads.shape[0] ? view.head : null;

// The name of a head, with the unit whose it is: everywhere, or of those chosen at a position.
function headName(place, head, position = null) {
  if (head === null) return "all heads on average";
  const chosen = position === null ? undefined : place.chosen?.[position]?.[head];
  const owner = place.unit === "head" ? undefined : place.owner?.[head];
  const unit = chosen ?? owner;
  return unit === undefined ? `head ${head}` : `head ${head} (${place.unit} ${unit})`;
}

// The number of the output without a part of a place; null if nothing is known of it.
function removalOf(model, place, part, number) {
  const found = model.removals.findIndex(
    (each) => each.path === place.path && each.part === part && each.number === number,
  );
  return found < 0 ? null : found + 1;
}

function removalName(model, removal) {
  const place = model.places.find((each) => each.path === removal.path);
  const where = place.site ? `${siteTitle(model, place.site)}, layer ${place.layer}` : removal.path;
  return `${where}, ${removal.part} ${removal.number}`;
}

// --- the view and its address --------------------------------------------------------------------

function readView() {
  const read = new URLSearchParams(location.hash.slice(1));
  const number = (text) => (/^\d+$/.test(text ?? "") ? Number(text) : null);
  const numbers = (text) => models.map((_, index) => number((text ?? "").split(",")[index]));
  const places = models.flatMap((model) => model.places);
  const known = places.find((place) => keyOf(place) === read.get("place"));
  view.place = keyOf(known ?? places.find((place) => place.weights) ?? places[0]);
  view.layer = number(read.get("layer"));
  view.head = number(read.get("head"));
  view.units = numbers(read.get("unit"));
  view.without = numbers(read.get("without"));
  view.without = view.without.map((each, at) => (each > 0 && each <= models[at].removals.length ? each : null));
  view.model = number(read.get("model"));
  if (!models[view.model]) view.model = null;
  const [stack, position] = (read.get("token") ?? "").split(":");
  view.token = number(position) === null ? null : { stack, position: number(position) };
}

function writeView() {
  const several = (numbers) =>
    numbers.some((each) => each !== null) ? numbers.map((each) => each ?? "").join(",") : null;
  const said = {
    place: view.place,
    layer: view.layer,
    head: view.head,
    unit: several(view.units),
    without: several(view.without),
    model: view.model,
    token: view.token && `${view.token.stack}:${view.token.position}`,
  };
  const kept = Object.entries(said).filter(([, value]) => value !== null);
  try {
    history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
  } catch {
    // A notebook shows the page in a frame that has no address.
  }
}

function look(changes) {
  Object.assign(view, changes);
  return draw();
}

// --- choices -------------------------------------------------------------------------------------

function choice(label, options, chosen, choose) {
  if (options.length < 2) return null;
  const name = make("span", { class: "label", text: label });
  if (options.length > 14) {
    const list = make("select", { "aria-label": label, "data-focus": label });
    options.forEach(({ text, value }) => list.append(make("option", { text, selected: value === chosen })));
    list.addEventListener("change", () => choose(options[list.selectedIndex].value));
    return make("div", { class: "control" }, name, list);
  }
  const buttons = options.map(({ text, value }) =>
    make("button", {
      type: "button",
      text,
      "aria-pressed": String(value === chosen),
      "data-focus": `${label} ${value}`,
      onclick: () => choose(value),
    }),
  );
  const group = { class: "control", role: "group", "aria-label": label };
  return make("div", group, name, make("span", { class: "buttons" }, buttons));
}

function controls() {
  const seen = models.filter((_, index) => view.model === null || view.model === index);
  const places = seen.flatMap((model) => model.places);
  if (!places.some((place) => keyOf(place) === view.place)) view.place = keyOf(places[0]);
  const layers = unique(places.filter((each) => keyOf(each) === view.place).map(({ layer }) => layer));
  layers.sort((one, other) => one - other);
  if (!layers.includes(view.layer)) [view.layer] = layers;
  const here = seen.map(placeOf).filter(Boolean);
  const heads = Math.max(0, ...here.map((place) => place.heads?.shape[0] ?? 0));
  const all = (values, name) => [{ value: null, text: name }, ...values];
  const names = models.map((model, value) => ({ value, text: model.name }));
  const sites = unique(places.map(keyOf)).map((value) => ({ value, text: siteTitle(seen[0], value) }));
  const plain = (values) => values.map((value) => ({ value, text: String(value) }));
  return make(
    "div",
    { class: "controls" },
    models.length > 1 ? choice("Show", all(names, "all"), view.model, (model) => look({ model })) : null,
    choice("Attention", sites, view.place, (place) => look({ place })),
    choice("Layer", plain(layers), view.layer, (layer) => look({ layer })),
    heads > 1
      ? choice("Head", all(plain(range(heads)), "mean"), view.head, (head) => look({ head }))
      : null,
  );
}

// --- colours -------------------------------------------------------------------------------------

function colourOf(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return rgbOf(text);
}

const rgbOf = (text) => [1, 3, 5].map((start) => parseInt(text.slice(start, start + 2), 16));

function put(canvas, data, width, height) {
  Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
}

// By which unit and how strongly each position is coloured: null where nothing is decided.
async function paintingOf(model, number, place) {
  if (!place.weights) return null;
  const weights = await arrayOf(place.weights);
  const [rows, units] = weights.shape;
  const positions = range(model.stacks[place.stack].tokens.length);
  const row = (position) => weights.row(rows === 1 ? 0 : position);
  const leader = (position) => {
    const own = row(position);
    const most = Math.max(...own);
    return own.filter((weight) => weight === most).length > 1 ? -1 : own.indexOf(most);
  };
  const leaders = positions.map(leader);
  const often = range(units).map((unit) => leaders.filter((each) => each === unit).length);
  const first = range(units).sort((one, other) => often[other] - often[one]).slice(0, COLOURS);
  first.sort((one, other) => one - other);
  const look = (unit) => `unit-${first.includes(unit) ? first.indexOf(unit) : "other"}`;
  const unit = view.units[number] < units ? view.units[number] : null;
  const painting = { row, units, leaders, first, look, unit, mean: meanRow(range(rows).map(row)), rows };
  if (unit === null) {
    const marks = leaders.map((each) => (each < 0 ? "=" : String(each)));
    return { ...painting, marks, strengths: positions.map(() => 1), looks: leaders.map(look) };
  }
  const own = positions.map((position) => row(position)[unit]);
  const [least, most] = [Math.min(...own), Math.max(...own)];
  const share = (weight) => (least === most ? 1 : (weight - least) / (most - least));
  const marks = own.map((weight) => written(weight).replace(/^0/, ""));
  return { ...painting, marks, strengths: own.map(share), looks: own.map(() => look(unit)), least, most };
}

// --- what stands at positions: tokens, or the cells of an image or of a spectrogram --------------

function tokensView(stack, title, act) {
  const spaced = stack.tokens.some((token) => token.startsWith("▁"));
  const tokens = stack.tokens.map((token, position) => {
    const text = make("span", { class: "text", text: tokenText(token) });
    const made = make("li", { class: "token", role: "option", tabindex: "-1" }, text, make("span", { class: "mark" }));
    made.classList.toggle("starts-word", !spaced || token.startsWith("▁"));
    made.dataset.position = position;
    return made;
  });
  if (tokens.length) tokens[0].tabIndex = 0;
  const list = make("ol", { class: "tokens", role: "listbox", "aria-label": title }, tokens);
  const at = (event) => event.target.closest(".token")?.dataset.position;
  const listen = (name, happens) =>
    list.addEventListener(name, (event) => at(event) !== undefined && happens(Number(at(event)), event));
  listen("pointerover", (position, event) => event.pointerType !== "touch" && act.point(position));
  list.addEventListener("pointerleave", () => act.point(null));
  listen("click", (position) => act.pick(position));
  listen("keydown", (position, event) => {
    const last = tokens.length - 1;
    const next = { ArrowLeft: position - 1, ArrowRight: position + 1, Home: 0, End: last, Enter: position }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const reached = Math.min(Math.max(next, 0), last);
    tokens[reached].focus();
    act.pick(reached, true);
  });
  listen("focusin", (position, event) => event.target.matches(":focus-visible") && act.pick(position, true));
  const paint = (painting) =>
    tokens.forEach((token, position) => {
      token.className = token.className.replace(/ ?unit-\w+/, "") + (painting ? ` ${painting.looks[position]}` : "");
      token.lastChild.textContent = painting?.marks[position] ?? "";
      token.style.setProperty("--strength", painting?.strengths[position] ?? 0);
    });
  const read = (shares) => {
    const most = shares ? largest(shares) || 1 : 1;
    list.classList.toggle("read", shares !== null);
    tokens.forEach((token, position) => {
      token.style.setProperty("--read", shares ? Math.abs(shares[position]) / most : 0);
      token.classList.toggle("negative", shares !== null && shares[position] < 0);
    });
  };
  const mark = (here) =>
    tokens.forEach((token, position) => {
      token.classList.toggle("here", position === here);
      token.setAttribute("aria-selected", String(position === here));
      if (here !== null) token.tabIndex = position === here ? 0 : -1;
    });
  return { element: make("div", {}, make("h3", { text: title }), list), paint, read, mark };
}

function cellsView(stack, title, act) {
  const { width, height, first } = stack;
  const [below, over] = [make("canvas", { class: "below" }), make("canvas", { class: "over" })];
  const here = make("div", { class: "cursor", hidden: true });
  const keys = { class: `cells ${stack.word}`, tabindex: "0", role: "application", "aria-label": `${title}, arrows move` };
  const area = make("div", keys, below, over, here);
  area.style.aspectRatio = stack.word === "pixel" ? `${width} / ${height}` : "";
  const at = (event) => {
    const box = area.getBoundingClientRect();
    const cell = (share, cells) => Math.min(cells - 1, Math.max(0, Math.floor(share * cells)));
    const row = cell((event.clientY - box.top) / box.height, height);
    return first + row * width + cell((event.clientX - box.left) / box.width, width);
  };
  area.addEventListener("pointermove", (event) => act.point(at(event)));
  area.addEventListener("pointerleave", () => act.point(null));
  area.addEventListener("click", (event) => act.pick(at(event)));
  area.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width }[event.key];
    if (!step) return;
    event.preventDefault();
    const now = view.token?.position ?? first - step;
    act.pick(Math.min(Math.max(now + step, first), stack.tokens.length - 1), true);
  });
  const element = make("div", {}, make("h3", { text: title }), area);
  if (stack.word === "pixel") put(below, pixels(stack.tokens.slice(first), rgbOf), width, height);
  if (stack.loudness) {
    drawSound(below, stack.loudness);
    const seconds = stack.tokens.at(-1);
    const scale = `From 0 to ${seconds} to the right, from 0 to ${stack.rate / 2000} kHz upwards; the darker, the louder.`;
    element.append(make("p", { class: "small", text: scale }), make("audio", { controls: true, src: stack.sound }));
  }
  let painted = null;
  const cover = (colours, strengths) => {
    over.hidden = colours === null;
    if (colours === null) return;
    const data = new Uint8ClampedArray(4 * width * height);
    for (let cell = 0; cell < width * height; cell++) {
      data.set([...colours(cell + first), 235 * strengths[cell + first]], 4 * cell);
    }
    put(over, data, width, height);
  };
  const paint = (painting) => {
    painted = painting;
    if (!painting) return cover(null);
    const known = new Map(unique(painting.looks).map((name) => [name, colourOf(`--${name}`)]));
    cover((position) => known.get(painting.looks[position]), painting.strengths.map((each) => 0.7 * each));
  };
  const read = (shares) => {
    if (!shares) return paint(painted);
    const [heat, negative, most] = [colourOf("--heat"), colourOf("--negative"), largest(shares) || 1];
    const strengths = Array.from(shares, (share) => Math.sqrt(Math.abs(share) / most));
    cover((position) => (shares[position] < 0 ? negative : heat), strengths);
  };
  const mark = (position) => {
    here.hidden = position === null || position < first;
    if (here.hidden) return;
    const [row, column] = [Math.floor((position - first) / width), (position - first) % width];
    const box = { left: column / width, top: row / height, width: 1 / width, height: 1 / height };
    for (const [side, share] of Object.entries(box)) here.style[side] = `${100 * share}%`;
  };
  return { element, paint, read, mark };
}

function pixels(colours, rgb) {
  return Uint8ClampedArray.from(colours.flatMap((colour) => [...rgb(colour), 255]));
}

async function drawSound(canvas, loudness) {
  const { shape, row } = await arrayOf(loudness);
  const [frames, bins] = shape;
  const [data, ink] = [new Uint8ClampedArray(4 * frames * bins), colourOf("--text")];
  for (let frame = 0; frame < frames; frame++) {
    row(frame).forEach((share, bin) => data.set([...ink, 255 * share ** 2], 4 * ((bins - 1 - bin) * frames + frame)));
  }
  put(canvas, data, frames, bins);
}

// --- tables --------------------------------------------------------------------------------------

function barRow({ name, value, most, look = "heat", said, action }) {
  const bar = make("span", { class: `bar ${value < 0 && look === "heat" ? "heat negative" : look}` }, make("i"));
  bar.firstChild.style.width = `${100 * Math.min(1, Math.abs(value) / (most || 1))}%`;
  const cells = [make("th", { scope: "row" }, name), make("td", {}, bar)];
  cells.push(make("td", { class: "number", text: said ?? written(value) }));
  if (action !== undefined) cells.push(make("td", { class: "action" }, action));
  return make("tr", {}, cells);
}

function barTable(caption, rows, look = "") {
  const body = (some) => make("table", { class: `bars ${look}` }, some);
  const first = body(rows.slice(0, ROWS));
  first.prepend(make("caption", { text: caption }));
  if (rows.length <= ROWS) return first;
  const others = make("details", {}, make("summary", { text: `The other ${rows.length - ROWS}` }), body(rows.slice(ROWS)));
  return make("div", {}, first, others);
}

function removeButton(model, number, removal) {
  if (removal === null) return null;
  const isOff = view.without[number] === removal;
  return make("button", {
    type: "button",
    class: "remove",
    text: isOff ? "put back" : "remove",
    "aria-pressed": String(isOff),
    "data-focus": `remove ${number} ${removal}`,
    "data-removal": removal,
    title: `${isOff ? "Put back" : "Remove"}: ${removalName(model, model.removals[removal - 1])}`,
    onclick: () => remove(number, removal),
  });
}

function remove(number, removal) {
  const without = [...view.without];
  without[number] = without[number] === removal ? null : removal;
  return look({ without });
}

const moved = (before, now, digits = 2) =>
  written(before, digits) === written(now, digits)
    ? written(now, digits)
    : `${written(before, digits)} → ${written(now, digits)}`;

// --- what comes out ------------------------------------------------------------------------------

async function outputOf(model, number) {
  const pass = view.without[number] ?? 0;
  const parts = model.made.map(madeShown);
  const truth = model.kind === "numbers"
    ? `squared error${model.is_known ? "" : " to the output of the whole model"}`
    : `−log p of ${model.is_known ? "what is true" : "what the whole model says"}, nats on average`;
  const loss = moved(model.losses[0], model.losses[pass], 3);
  parts.push(labelled(`Loss (${truth})`, make("p", { class: "loss", text: loss })));
  if (model.numbers?.length) {
    const said = moved(model.numbers[0], model.numbers[pass], 3);
    parts.push(labelled("Output", make("p", { text: said })));
  }
  if (model.kind === "classes") parts.push(barTable("Probability of each class", await bestRows(model, 0, pass)));
  if (model.kind === "tokens") parts.push(await saidShown(model, pass));
  if (model.stacks[model.over].word === "frame") parts.push(await errorShown(model, pass));
  const off = pass ? removalName(model, model.removals[pass - 1]) : "";
  const told = pass ? make("p", { class: "removed" }, `Without ${off}. `, removeButton(model, number, pass)) : null;
  return make("div", { class: "output" }, told, parts);
}

const labelled = (label, ...content) => make("div", { class: "made" }, make("h3", { text: capital(label) }), ...content);

function madeShown({ label, text, picture, sound, loudness }) {
  if (picture) return labelled(label, make("img", { class: "picture", src: picture, alt: label }));
  if (!sound) return labelled(label, make("p", { text }));
  const canvas = make("canvas", { class: "spectrogram" });
  drawSound(canvas, loudness);
  return labelled(label, canvas, make("audio", { controls: true, src: sound }));
}

// The candidates at a position, with what they had before; what is true is marked.
async function bestRows(model, position, pass) {
  const [ids, shares] = await Promise.all([arrayOf(model.ids), arrayOf(model.shares)]);
  const at = (which) => ({ ids: ids.row(which, position), shares: shares.row(which, position) });
  const [before, now, true_] = [at(0), at(pass), model.true[position]];
  return Array.from(now.ids, (id, index) => {
    const place = before.ids.indexOf(id);
    const said = place < 0 ? `< ${written(before.shares.at(-1))} → ${written(now.shares[index])}` : moved(before.shares[place], now.shares[index]);
    const text = model.kind === "classes" ? model.names[id] : `“${tokenText(model.names[id])}”`;
    const name = make("span", {}, swatchOf(model.names[id]), text, id === true_ && model.is_known ? make("b", { text: " ✓", title: "true" }) : null);
    return barRow({ name, value: now.shares[index], most: 1, said });
  });
}

function swatchOf(name) {
  if (!/^#[0-9a-f]{6}$/.test(name)) return null;
  const swatch = make("span", { class: "key" });
  swatch.style.background = name;
  return swatch;
}

// The most probable token at each position where one is asked for; those that have changed marked.
async function saidShown(model, pass) {
  const [ids, real] = await Promise.all([arrayOf(model.ids), arrayOf(model.real)]);
  const stack = model.stacks[model.over];
  const asked = range(model.true.length).filter((position) => model.true[position] >= 0);
  const best = (which, position) => ids.row(which, position)[0];
  if (stack.word === "pixel") {
    const canvas = make("canvas", { class: "picture" });
    const colours = asked.slice(0, stack.width * stack.height).map((position) => model.names[best(pass, position)]);
    put(canvas, pixels(colours, (name) => (name.startsWith("#") ? rgbOf(name) : [128, 128, 128])), stack.width, stack.height);
    return labelled("the most probable colour at each pixel", canvas);
  }
  const chips = asked.map((position) => {
    const [before, now] = [best(0, position), best(pass, position)];
    const [was, is] = [real.row(0)[position], real.row(pass)[position]];
    const true_ = model.names[model.true[position]];
    const chip = make("span", { class: "said", title: `${model.is_known ? "true" : "whole model"}: “${tokenText(true_)}”, p ${moved(was, is, 3)}` });
    chip.textContent = tokenText(model.names[now]);
    chip.classList.toggle("starts-word", model.names[now].startsWith("▁"));
    chip.classList.toggle("right", model.is_known && now === model.true[position]);
    chip.classList.toggle("changed", before !== now);
    return chip;
  });
  const what = model.shifted || model.over === "decoder" ? "the most probable next token, at each position" : "the most probable token at each hidden one";
  const hint = model.is_known ? "Green: it is the true one. Underlined: it has changed by the removal." : "Underlined: it has changed by the removal.";
  return labelled(what, make("p", { class: "chips" }, chips), make("p", { class: "small", text: hint }));
}

// The error at each frame, or how much larger it is without a part.
async function errorShown(model, pass) {
  const errors = await arrayOf(model.real);
  const before = errors.row(0);
  const shown = Float32Array.from(errors.row(pass), (error, frame) => (pass ? error - before[frame] : error));
  const [canvas, most] = [make("canvas", { class: "strip" }), largest(shown) || 1];
  const [worse, better] = [colourOf("--negative"), colourOf("--heat")];
  const data = new Uint8ClampedArray(4 * shown.length);
  shown.forEach((error, frame) => data.set([...(error < 0 ? better : worse), (255 * Math.abs(error)) / most], 4 * frame));
  put(canvas, data, shown.length, 1);
  const what = pass ? "how the error changes at each frame (red: larger)" : "the error at each frame";
  return labelled(`${what}, at most ${written(most)}`, canvas);
}

// All that can be removed, by what the loss rises without it.
function mattersShown(model, number) {
  if (!model.removals.length) return make("p", { class: "small", text: model.note });
  const cost = (index) => model.losses[index + 1] - model.losses[0];
  const order = range(model.removals.length).sort((one, other) => cost(other) - cost(one));
  const most = largest(order.map(cost));
  const digits = most >= 0.05 ? 2 : most >= 0.005 ? 3 : 4;
  const rows = order.map((index) => {
    const said = written(cost(index), digits, "+");
    const look = cost(index) > 0 ? "worse" : "better";
    const name = removalName(model, model.removals[index]);
    return barRow({ name, value: cost(index), most, said, look, action: removeButton(model, number, index + 1) });
  });
  const parts = unique(model.removals.map(({ part }) => part)).join(" or ");
  return barTable(`What matters on this input: how much the loss rises without each ${parts}`, rows, "matters");
}

// --- maps ----------------------------------------------------------------------------------------

// What heads read, as rows of queries: one head, or the mean of all.
function readsOf(heads, head, query) {
  const rows = head === null ? range(heads.shape[0]).map((each) => heads.row(each, query)) : [heads.row(head, query)];
  return meanRow(rows);
}

function drawMatrix(canvas, rows, most) {
  const [height, width] = [rows.length, rows[0].length];
  const data = new Uint8ClampedArray(4 * height * width);
  const [heat, negative] = [colourOf("--heat"), colourOf("--negative")];
  rows.forEach((row, y) =>
    row.forEach((share, x) => {
      // By its root, or else a row that reads many keys a little would look as if it read nothing.
      data.set([...(share < 0 ? negative : heat), 255 * Math.sqrt(Math.abs(share) / (most || 1))], 4 * (y * width + x));
    }),
  );
  put(canvas, data, width, height);
}

// The large map: a row for each position that reads, a column for each that is read.
function largeMap(model, place, heads, act) {
  const head = headOf(place);
  const [, queries, keys] = heads.shape;
  const rows = range(queries).map((query) => readsOf(heads, head, query));
  const most = rows.reduce((max, row) => Math.max(max, largest(row)), 0);
  const [cells, canvas] = [make("canvas"), make("canvas", { class: "matrix", role: "img" })];
  drawMatrix(cells, rows, most);
  canvas.setAttribute("aria-label", `Map of ${headName(place, head)}: ${queries} rows read, ${keys} columns are read`);
  const sides = [model.stacks[place.stack], model.stacks[place.keys] ?? null];
  const said = make("p", { class: "small", "aria-live": "off" });
  const tell = (text) => (said.textContent = text);
  const rest = `Rows read, columns are read.${heads.signed ? " Red: negative weights." : ""}`;
  tell(rest);
  let box = null;
  const draw = () => {
    const width = canvas.parentElement?.clientWidth;
    if (width) box = drawLabelled(canvas, cells, sides, width);
  };
  const cellAt = (event) => {
    const shown = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - shown.left - box.left) / box.cell);
    const row = Math.floor((event.clientY - shown.top - box.top) / box.cell);
    return row >= 0 && column >= 0 && row < queries && column < keys ? { row, column } : null;
  };
  const name = (stack, position) => (stack ? tokenName(stack, position) : `position ${position}`);
  canvas.addEventListener("pointermove", (event) => {
    const cell = box && cellAt(event);
    if (!cell) return tell(rest);
    tell(`${name(sides[0], cell.row)} reads ${name(sides[1], cell.column)}: ${written(rows[cell.row][cell.column], 3)}`);
    act.point(cell.row);
  });
  canvas.addEventListener("pointerleave", () => (act.point(null), tell(rest)));
  canvas.addEventListener("click", (event) => box && cellAt(event) && act.pick(cellAt(event).row));
  const frame = make("div", { class: "frame" }, canvas);
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(frame);
  const title = `What ${headName(place, head)} read${head === null ? "" : "s"}`;
  return make("div", {}, make("h3", { text: capital(title) }), frame, scaleOf(most, heads.signed), said);
}

// Draws a map with what stands at its sides: names, or of an image its pixels and lines at its rows.
function drawLabelled(canvas, cells, sides, width) {
  const small = 12;
  const context = canvas.getContext("2d");
  const font = `${small}px ${getComputedStyle(document.body).fontFamily}`;
  context.font = font;
  const letters = width < 480 ? 9 : 18;
  const cut = (name) => (name.length > letters ? `${name.slice(0, letters - 1)}…` : name);
  const counts = [cells.height, cells.width];
  const isImage = sides.map((stack) => stack?.word === "pixel");
  const name = (stack, at) => (!stack ? String(at) : stack.word === "token" ? tokenText(stack.tokens[at]) : stack.tokens[at]);
  const names = sides.map((stack, side) => (isImage[side] ? [] : range(counts[side]).map((at) => cut(name(stack, at)))));
  const widest = (all) => Math.ceil(Math.max(...all.map((each) => context.measureText(each).width))) + 6;
  const [left, top] = names.map((all, side) => (isImage[side] ? 16 : widest(all)));
  const high = Math.max(small + 2, (0.85 * innerHeight - top) / cells.height);
  const fitting = Math.min(64, high, (width - left - 1) / cells.width);
  const cell = fitting < 3 ? fitting : Math.floor(fitting);
  const ratio = devicePixelRatio || 1;
  const [right, bottom] = [cell * cells.width, cell * cells.height];
  Object.assign(canvas, { width: Math.ceil(ratio * (left + right + 1)), height: Math.ceil(ratio * (top + bottom + 1)) });
  canvas.style.width = `${canvas.width / ratio}px`;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = ratio * cell < 1;
  context.drawImage(cells, left, top, right, bottom);
  context.strokeStyle = colour("--line");
  context.strokeRect(left - 0.5, top - 0.5, right + 1, bottom + 1);
  sides.forEach((stack, side) => {
    for (let at = 0; isImage[side] && at < counts[side]; at++) {
      const token = stack.tokens[at];
      context.fillStyle = token.startsWith("#") ? token : colour("--raised");
      const place = side ? [left + at * cell, 2, cell, 12] : [2, top + at * cell, 12, cell];
      context.fillRect(...place);
      if (at < stack.first || (at - stack.first) % stack.width) continue;
      const line = side ? [left + at * cell, top, 1, bottom] : [left, top + at * cell, right, 1];
      context.fillStyle = colour("--muted");
      context.globalAlpha = 0.5;
      context.fillRect(...line);
      context.globalAlpha = 1;
    }
  });
  context.font = font;
  context.fillStyle = colour("--text");
  context.textBaseline = "middle";
  const each = Math.ceil((small + 1) / cell);
  const write = (all, at) => all.forEach((text, index) => index % each === 0 && at(text, (index + 0.5) * cell));
  context.textAlign = "right";
  write(names[0], (text, at) => context.fillText(text, left - 6, top + at));
  context.textAlign = "left"; // from the cells upwards
  context.translate(left, top - 6);
  context.rotate(-Math.PI / 2);
  write(names[1], (text, at) => context.fillText(text, 0, at));
  return { left, top, cell };
}

// The scale of a map: from 0, or from the most negative, to the largest weight.
function scaleOf(most, signed) {
  const [canvas, steps] = [make("canvas", { "aria-hidden": "true" }), 120];
  const least = signed ? -most : 0;
  const shares = Float32Array.from({ length: steps }, (_, step) => least + ((most - least) * step) / (steps - 1));
  drawMatrix(canvas, [shares], most);
  const ends = [least, (least + most) / 2, most].map((value) => make("span", { text: written(value) }));
  return make("div", { class: "scale" }, make("span", { text: "weight" }), make("div", {}, canvas, make("div", { class: "ends" }, ends)));
}

// All heads as small maps with one scale; a click chooses one.
function smallMaps(model, number, place, heads) {
  const [count, queries] = heads.shape;
  if (count < 2) return null;
  const all = range(count).map((head) => range(queries).map((query) => heads.row(head, query)));
  const most = all.reduce((max, rows) => rows.reduce((max, row) => Math.max(max, largest(row)), max), 0);
  const shown = all.map((rows, head) => {
    const canvas = make("canvas", { "aria-hidden": "true" });
    drawMatrix(canvas, rows, most);
    const chosen = view.head === head;
    const button = make(
      "button",
      {
        type: "button",
        class: "head",
        "aria-pressed": String(chosen),
        "aria-label": capital(headName(place, head)),
        "data-focus": `head ${number} ${head}`,
        onclick: () => look({ head: chosen ? null : head }),
      },
      canvas,
      make("span", { text: headName(place, head).replace("head ", "") }),
    );
    return make("div", {}, button, removeButton(model, number, removalOf(model, place, "head", head)));
  });
  const heading = `All ${count} heads, on one scale from 0 to ${written(most)}`;
  return make("div", {}, make("h3", { text: heading }), make("div", { class: "heads" }, shown));
}

// --- one model -----------------------------------------------------------------------------------

function explanationOf(model, place, painting) {
  const where = place.site ? `${siteTitle(model, place.site)}, layer ${place.layer}` : place.path;
  const word = model.stacks[place.stack].word;
  if (!painting) {
    const text = ` This attention (${place.system}) adds up its heads and decides nothing, so that nothing is coloured.`;
    return make("p", {}, make("strong", { text: `${where}.` }), text);
  }
  const { unit } = place;
  const sentences = [];
  if (place.chosen) sentences.push(`Each ${word} chooses ${place.chosen[0].length} of ${painting.units} ${unit}s.`);
  if (painting.unit !== null) {
    const ends = `${written(painting.least)} to ${written(painting.most)}`;
    sentences.push(`The stronger the colour, the larger the weight of ${unit} ${painting.unit}, from ${ends}.`);
  } else {
    const told = word === "token" ? "Colour and number of a token tell" : `The colour of a ${word} tells`;
    sentences.push(`${told} which ${unit} has the largest weight there.`);
    if (painting.leaders.includes(-1)) sentences.push("= stands where several have the same.");
    if (painting.units > COLOURS) sentences.push(`The eight ${unit}s that are it most often have a colour.`);
  }
  if (painting.rows === 1) sentences.push(`There is one decision for all ${word}s.`);
  return make("p", {}, make("strong", { text: `${where}: weights of ${painting.units} ${unit}s.` }), ` ${sentences.join(" ")}`);
}

function legendOf(number, place, painting) {
  const choose = (unit) => {
    const units = [...view.units];
    units[number] = unit;
    return look({ units });
  };
  const few = painting.units <= 16 ? range(painting.units) : painting.first;
  const button = (unit, text, name) =>
    make("button", {
      type: "button",
      text,
      class: unit === null ? "" : `swatch ${painting.look(unit)}`,
      "aria-pressed": String(painting.unit === unit),
      "aria-label": name,
      "data-focus": `unit ${number} ${unit}`,
      onclick: () => choose(painting.unit === unit ? null : unit),
    });
  const all = make("select", { "aria-label": `Another ${place.unit}`, "data-focus": `units ${number}` });
  all.append(make("option", { text: "another …" }));
  range(painting.units).forEach((unit) => all.append(make("option", { text: `${place.unit} ${unit}`, selected: unit === painting.unit })));
  all.addEventListener("change", () => choose(all.selectedIndex ? all.selectedIndex - 1 : null));
  return make(
    "div",
    { class: "legend", role: "group", "aria-label": "Colours" },
    button(null, "largest weight", `Colour by the ${place.unit} of largest weight`),
    make("span", { class: "small", text: `or weight of ${place.unit}` }),
    few.map((unit) => button(unit, String(unit), `Colour by the weight of ${place.unit} ${unit}`)),
    few.length < painting.units ? all : null,
  );
}

function stackTitle(model, name) {
  const { word } = model.stacks[name];
  if (Object.keys(model.stacks).length > 1) return `The ${name} reads`;
  return { token: "Text", pixel: "Image", frame: "Sound" }[word];
}

async function column(model, number) {
  const place = placeOf(model);
  const heading = make("h2", { text: model.name });
  const output = await outputOf(model, number);
  const matters = mattersShown(model, number);
  if (!place) {
    const none = make("p", { text: "This model has no attention at this place." });
    return { element: make("section", { class: "model" }, heading, output, none, matters), point() {} };
  }
  const painting = await paintingOf(model, number, place);
  const heads = place.heads && (await arrayOf(place.heads));
  const best = model.ids ? await Promise.all([arrayOf(model.ids), arrayOf(model.shares)]) : null;
  const act = (stack) => ({
    point: (position) => point(position === null ? null : { stack, position }),
    pick: (position, again) => pick({ stack, position }, again),
  });
  const shown = unique([place.keys ?? place.stack, place.stack]);
  const views = new Map(
    shown.map((name) => {
      const stack = model.stacks[name];
      const View = stack.width ? cellsView : tokensView;
      return [name, View(stack, stackTitle(model, name), act(name))];
    }),
  );
  views.get(place.stack).paint(painting);
  const inspector = make("div", { class: "inspector" });
  const { word } = model.stacks[place.stack];
  const cross = place.keys !== null && place.keys !== place.stack;
  const hint = cross
    ? "Point at either text: blue in the other is what is read from there, or what reads it."
    : `Point at a ${word}: blue is what the heads read from there.`;
  const sentences = [...views.values()].map(({ element }) => element);
  sentences.push(make("p", { class: "small", text: heads ? hint : `Point at a ${word} to see its numbers.` }));
  const element = make(
    "section",
    { class: "model", "aria-label": model.name },
    heading,
    output,
    explanationOf(model, place, painting),
    painting && legendOf(number, place, painting),
    make("div", { class: "place" }, make("div", {}, sentences), inspector),
    matters,
    heads && largeMap(model, place, heads, act(place.stack)),
    heads && smallMaps(model, number, place, heads),
  );

  // What is read at a token: from there if it is one that reads, else by which it is read.
  function reading(token) {
    if (!heads || !token) return null;
    const [, queries, keys] = heads.shape;
    const head = headOf(place);
    if (token.stack === place.stack && token.position < queries) {
      return { stack: place.keys, shares: readsOf(heads, head, token.position), reads: true };
    }
    if (token.stack !== place.keys || token.position >= keys) return null;
    const shares = Float32Array.from(range(queries), (query) => readsOf(heads, head, query)[token.position]);
    return { stack: place.stack, shares, reads: false };
  }

  async function show() {
    const token = pointed ?? view.token;
    const stack = model.stacks[token?.stack];
    const there = stack && token.position < stack.tokens.length ? token : null;
    const read = reading(there);
    for (const [name, each] of views) {
      each.mark(there?.stack === name ? there.position : null);
      each.read(read?.stack === name ? read.shares : null);
    }
    const at = there?.stack === place.stack ? there.position : null;
    const parts = [make("h3", {}, there ? capital(tokenName(stack, there.position)) : "The whole input")];
    if (there) parts[0].append(make("small", { text: ` position ${there.position}` }));
    if (painting) {
      const own = at === null ? painting.mean : painting.row(at);
      const [most, chosen] = [Math.max(...own), at === null ? null : place.chosen?.[at]];
      const order = range(own.length).sort((one, other) => own[other] - own[one]);
      const rows = (own.length > ROWS ? order : range(own.length)).map((unit) => {
        const name = make("span", {}, make("span", { class: `key ${painting.look(unit)}` }), `${place.unit} ${unit}`);
        const said = chosen && !chosen.includes(unit) ? "–" : undefined;
        const action = removeButton(model, number, removalOf(model, place, place.unit, unit));
        return barRow({ name, value: own[unit], most, look: painting.look(unit), said, action });
      });
      parts.push(barTable(at === null && painting.rows > 1 ? "Mean weights of all positions" : "Weights", rows, "weights"));
    }
    if (read) {
      const name = headName(place, headOf(place), read.reads ? there.position : null);
      const order = range(read.shares.length).sort((one, other) => Math.abs(read.shares[other]) - Math.abs(read.shares[one]));
      const source = model.stacks[read.stack];
      const rows = order.slice(0, 6).map((position) => {
        const text = source ? tokenName(source, position) : "position";
        const named = make("span", {}, text, make("small", { text: ` ${position}` }));
        return barRow({ name: named, value: read.shares[position], most: 1, said: written(read.shares[position], 2) });
      });
      parts.push(barTable(read.reads ? `Read from here by ${name}` : `Reads this: ${name}`, rows, "reads"));
    }
    if (best && model.kind === "tokens" && there?.stack === model.over && there.position < model.true.length) {
      const caption = model.shifted || model.over === "decoder" ? "Probable next" : "Probable here";
      parts.push(barTable(caption, await bestRows(model, there.position, view.without[number] ?? 0), "probable"));
    }
    if (token !== (pointed ?? view.token)) return; // the reader has gone on
    inspector.replaceChildren(...parts);
  }
  return { element, show };
}

// --- the page ------------------------------------------------------------------------------------

const showAll = () => Promise.all(columns.map((each) => each.show?.()));

function point(token) {
  pointed = token;
  return showAll();
}

// Keeps a token selected; a second click lets it go, unless it is to stay.
function pick(token, stays = false) {
  const same = view.token?.stack === token.stack && view.token?.position === token.position;
  view.token = same && !stays ? null : token;
  pointed = null;
  writeView();
  return showAll();
}

let drawing = 0;
async function draw() {
  const mine = ++drawing;
  const focus = document.activeElement?.dataset?.focus;
  const bar = controls();
  const shown = models.map((model, number) => [model, number]).filter(([, number]) => view.model === null || view.model === number);
  const made = await Promise.all(shown.map(([model, number]) => column(model, number)));
  if (mine !== drawing) return; // the reader has gone on
  columns = made;
  writeView();
  const header = make("header", {}, make("h1", { text: title }), make("p", { class: "says", text: says }));
  const note = "Attention to a token need not be the cause of what the model does: remove a part to see what it is worth. Loss and tokens without a part are those of a forward pass of this model on this input.";
  document.getElementById("page").replaceChildren(
    header,
    bar,
    make("div", { class: "models" }, made.map(({ element }) => element)),
    make("footer", { text: note }),
  );
  await showAll();
  if (focus) document.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
  document.documentElement.dataset.drawn = String(mine);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && view.token) pick(view.token);
});
addEventListener("hashchange", () => (readView(), draw()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
readView();
draw();
