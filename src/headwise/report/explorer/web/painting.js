// The colours of positions: by the leading unit, or by the weight of one unit. More than eight
// colours nobody tells apart, so of more units those that lead most often have one. A number always
// stands beside a colour.

const COLOURS = 8;

// The colours of a place's units, kept while a reader compares outputs of the same text.
const coloursOfPlaces = new Map();

// Returns for each unit the number of its colour, or null.
function coloursOf(key, units, leaders) {
  if (!coloursOfPlaces.has(key)) coloursOfPlaces.set(key, chosenColours(units, leaders));
  return coloursOfPlaces.get(key);
}

function chosenColours(units, leaders) {
  if (units <= COLOURS) return Array.from({ length: units }, (_, unit) => unit);
  const often = ledBy(units, leaders);
  const first = [...often.keys()].sort((a, b) => often[b] - often[a]).slice(0, COLOURS);
  // In the order of their numbers, so that a legend is read as one list.
  first.sort((a, b) => a - b);
  return often.map((_, unit) => (first.includes(unit) ? first.indexOf(unit) : null));
}

// How many positions each unit leads.
function ledBy(units, leaders) {
  const often = Array(units).fill(0);
  for (const leader of leaders) if (leader >= 0) often[leader] += 1;
  return often;
}

function colourClass(colours, unit) {
  const colour = unit < 0 ? null : colours[unit];
  return colour === null || colour === undefined ? "unit-other" : `unit-${colour}`;
}

// Returns for each position a class of the style sheet, a mark, a strength from 0 to 1 and a label.
async function paintingOf(key, place, positions, unit) {
  if (place.weights === null) return null;
  const weights = await numbersOf(place.weights);
  const leaders = weights.leaders();
  const colours = coloursOf(key, place.units, leaders);
  const row = (position) => (weights.rows === 1 ? 0 : position);
  const each = (valueOf) => Array.from({ length: positions }, (_, p) => valueOf(p));
  const units = each((position) => unit ?? leaders[row(position)]);
  const classes = units.map((painted) => colourClass(colours, painted));
  const painting = { weights, leaders, colours, unit, units, classes };
  if (unit === null) {
    return {
      ...painting,
      marks: units.map((leader) => (leader < 0 ? "=" : String(leader))),
      strengths: units.map(() => 1),
      labels: each((position) => leadLabel(place, units[position], weights.row(position))),
    };
  }
  const own = weights.column(unit);
  const weight = each((position) => own[row(position)]);
  const [least, most] = [Math.min(...own), Math.max(...own)];
  return {
    ...painting,
    marks: each((position) => markOfWeight(place, unit, position, weight[position])),
    // From the least to the largest: weights that are nearly even differ too little to be seen.
    strengths: weight.map((each) => (least === most ? 1 : (each - least) / (most - least))),
    range: [least, most],
    labels: weight.map((each) => `weight ${twoDecimals(each)} of ${unitName(place, unit)}`),
  };
}

// A unit that a position has not chosen has no weight there, which is not the same as a small one.
function markOfWeight(place, unit, position, weight) {
  if (place.chosen && !chosenAt(place, position).includes(unit)) return "–";
  return twoDecimals(weight).replace(/^0/, "");
}

function chosenAt(place, position) {
  return place.chosen[place.chosen.length === 1 ? 0 : position] ?? [];
}

function leadLabel(place, leader, row) {
  if (leader < 0) return "no unit leads, several have the same weight";
  return `${unitName(place, leader)} leads, weight ${twoDecimals(row[leader])}`;
}

// From here on the colours as pixels, for what is drawn on a canvas.

function put(canvas, data, width, height) {
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
}

// A colour of the style sheet as red, green and blue.
function rgbOf(name) {
  return rgbOfHex(getComputedStyle(document.documentElement).getPropertyValue(name).trim());
}

function rgbOfHex(text) {
  return [1, 3, 5].map((start) => parseInt(text.slice(start, start + 2), 16));
}

// The colours of a painting: red, green, blue and opacity of each position.
function pixelsOf(painting, positions) {
  const colours = new Map();
  return mixed(positions, painting.strengths, (position) => {
    const name = painting.classes[position];
    if (!colours.has(name)) colours.set(name, rgbOf(`--${name}`));
    return colours.get(name);
  });
}

// How much of each position is read, as one colour; another where the share is negative.
function heatPixels(shares, positions) {
  const sizes = shares.map(Math.abs);
  const most = Math.max(...sizes, 1e-9);
  const [heat, negative] = [rgbOf("--heat"), rgbOf("--negative")];
  const strengths = sizes.map((size) => Math.sqrt(size / most));
  return mixed(positions, strengths, (position) => (shares[position] < 0 ? negative : heat));
}

// Weak colours are those of the page, not see-through: over dark pixels they would look strong.
function mixed(positions, strengths, colourOf) {
  const data = new Uint8ClampedArray(4 * positions);
  const weak = rgbOf("--surface");
  for (let position = 0; position < positions; position++) {
    const strength = strengths[position] ?? 0;
    const colour = colourOf(position).map(
      (part, index) => weak[index] + strength * (part - weak[index]),
    );
    data.set([...colour, 255], 4 * position);
  }
  return data;
}
