// What is being looked at, and what its parts are called. The view stands in the address, so that
// it can be linked.

const view = {
  site: null, // encoder_self, decoder_self, decoder_cross, or another name
  layer: null,
  head: null, // null: the mean of all heads
  units: [], // for each run the unit whose weight is the colour; null: the leading unit is
  run: null, // the only run that is shown; null: all
  token: null, // {stack, position}, the one that was picked
  opacity: 0.55, // of the colours over an image or a spectrogram
};

function readView() {
  const read = new URLSearchParams(location.hash.slice(1));
  const number = (text) => (/^\d+$/.test(text ?? "") ? Number(text) : null);
  view.site = read.get("site");
  view.layer = number(read.get("layer"));
  view.head = number(read.get("head"));
  view.units = (read.get("unit") ?? "").split(",").map(number);
  view.run = number(read.get("run"));
  const [stack, position] = (read.get("token") ?? "").split(":");
  view.token = number(position) === null ? null : { stack, position: number(position) };
}

function writeView() {
  const written = { site: view.site, layer: view.layer };
  if (view.head !== null) written.head = view.head;
  if (view.units.some((unit) => unit !== null)) {
    written.unit = Array.from(view.units, (unit) => unit ?? "").join(",");
  }
  if (view.run !== null) written.run = view.run;
  if (view.token) written.token = `${view.token.stack}:${view.token.position}`;
  const hash = Object.entries(written)
    .map(([name, value]) => `${name}=${value}`)
    .join("&");
  try {
    history.replaceState(null, "", `#${hash}`);
  } catch {
    // A notebook shows the page in a frame that has no address.
  }
}

// The unit whose weight colours a run; null: the leading unit does.
function unitOf(run, place) {
  const unit = view.units[run] ?? null;
  return unit !== null && unit < place.units ? unit : null;
}

// What is at the pointer, or else what was picked.
let pointed = null;

function tokenInView() {
  return pointed ?? view.token;
}

function sameToken(one, other) {
  return one?.stack === other?.stack && one?.position === other?.position;
}

// Where systems stand: the sites and layers of all runs together.

const SITES = {
  encoder_self: "Encoder self-attention",
  decoder_self: "Decoder self-attention",
  decoder_cross: "Decoder cross-attention",
};

const CROSS = "decoder_cross";

// Name of a site to its title, places and layers, in the order in which systems stand.
function sitesOf(runs) {
  const sites = new Map();
  const add = (site, title, place) => {
    const found = sites.get(site) ?? { titles: new Set(), places: [] };
    found.titles.add(title);
    found.places.push(place);
    sites.set(site, found);
  };
  for (const run of runs) {
    const alone = Object.keys(run.stacks).length === 1;
    for (const place of run.places) {
      add(place.site, siteTitle(place, alone), place);
      if (place.attentions.some(isCross)) add(CROSS, SITES[CROSS], place);
    }
  }
  for (const site of sites.values()) {
    // In some layers an attention, in others a whole layer: the attention names both.
    site.title = [...site.titles].find((title) => !/layers$/i.test(title)) ?? [...site.titles][0];
    site.layers = [...new Set(site.places.map((place) => place.layer))].sort((a, b) => a - b);
  }
  return sites;
}

function isCross(attention) {
  return attention.keys !== null && attention.keys !== attention.queries;
}

function siteTitle(place, alone) {
  if (place.whole_layer) return alone ? "Layers" : `${capital(place.site.split("_")[0])} layers`;
  if (alone && place.site.endsWith("_self")) return "Self-attention";
  return SITES[place.site] ?? (place.site || "Systems");
}

// In a sentence: encoder self-attention, layer 2.
function placeName(run, place) {
  const alone = Object.keys(run.stacks).length === 1;
  if (place.whole_layer) {
    return alone ? `layer ${place.layer}` : `${place.site.split("_")[0]} layer ${place.layer}`;
  }
  if (!place.site) return place.path;
  const title = siteTitle(place, alone);
  return `${title.charAt(0).toLowerCase()}${title.slice(1)}, layer ${place.layer}`;
}

// As a heading. The path of a module stays as it is.
function placeTitle(run, place) {
  return place.site ? capital(placeName(run, place)) : place.path;
}

// The place of a run at the site and layer in view, if it has one. A layer as a whole holds the
// cross-attention too.
function placeInView(run) {
  const inLayer = run.places.filter((place) => place.layer === view.layer);
  const whole = (place) => place.whole_layer && place.attentions.some(isCross);
  return (
    inLayer.find((place) => place.site === view.site) ??
    (view.site === CROSS ? inLayer.find(whole) : null) ??
    null
  );
}

function attentionInView(place) {
  const wanted = place.attentions.find((each) => isCross(each) === (view.site === CROSS));
  return wanted ?? place.attentions[0] ?? null;
}

// The head in view; null: the mean of all, also where there is no such head.
function headInView(attention) {
  return view.head !== null && view.head < attention.heads.length ? view.head : null;
}

// The name of a head, with the unit to which it belongs: everywhere, or at a position.
function headName(place, attention, head, position = null) {
  if (head === null) return "all heads on average";
  // An expert may have a head for each head of keys: those of the first come first.
  const chosen = place.chosen && position !== null ? chosenAt(place, position) : [];
  const unit = attention.unit_of_head?.[head] ?? chosen[head % chosen.length];
  return unit === undefined ? `head ${head}` : `head ${head} (${unitName(place, unit)})`;
}

function unitName(place, unit) {
  return place.unit_names[unit] ?? `unit ${unit}`;
}

// What a stack holds, as a heading over it.
function stackName(run, name) {
  const things = { text: "Text", image: "Image", speech: "Sound" }[run.stacks[name].kind];
  if (Object.keys(run.stacks).length === 1) return things;
  if (name === "encoder") return "The encoder reads";
  if (name === "decoder") {
    return run.stacks[name].given === null ? "The decoder reads" : "The decoder writes";
  }
  return name;
}

// A token as people read it: spaces and breaks are made visible where nothing else is there.
function tokenText(token) {
  const text = token.replace(/\n/g, "↵").replace(/\t/g, "⇥");
  return text.trim() === "" ? text.replace(/ /g, "␣") || "∅" : text.trim();
}

function tokenName(stack, position) {
  if (position >= stack.tokens.length) return `position ${position}`;
  return stack.kind === "text"
    ? `“${tokenText(stack.tokens[position])}”`
    : pixelOrFrame(stack, position);
}

function pixelOrFrame(stack, position) {
  const token = stack.tokens[position];
  if (stack.kind === "speech" || stack.special.includes(position)) return token;
  const pixel = position - stack.offset;
  return `row ${Math.floor(pixel / stack.width)}, column ${pixel % stack.width}`;
}
