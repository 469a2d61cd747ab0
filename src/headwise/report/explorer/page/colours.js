// Which unit has which colour. More than eight colours nobody tells apart, so of more units those
// that lead most often have one. A number always stands beside a colour.

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

// A colour of the style sheet as red, green and blue, for what is drawn on a canvas.
function rgbOf(name) {
  const value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((start) => parseInt(value.slice(start, start + 2), 16));
}

function rgbOfUnit(colours, unit) {
  return rgbOf(`--${colourClass(colours, unit)}`);
}
