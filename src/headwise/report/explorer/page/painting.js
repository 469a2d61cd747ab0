// How the positions of a place are coloured: by the leading unit, or by the weight of one unit.

// Returns for each position a class of the style sheet, a mark, a strength from 0 to 1 and a label.
async function paintingOf(key, place, positions, unit) {
  if (place.weights === null) return null;
  const weights = await numbersOf(place.weights);
  const leaders = weights.leaders();
  const colours = coloursOf(key, place.units, leaders);
  const leader = (position) => leaders[weights.rows === 1 ? 0 : position];
  const every = Array.from({ length: positions }, (_, position) => position);
  if (unit === null) {
    return {
      weights,
      leaders,
      colours,
      unit,
      units: every.map(leader),
      classes: every.map((position) => colourClass(colours, leader(position))),
      marks: every.map((position) => (leader(position) < 0 ? "=" : String(leader(position)))),
      strengths: every.map(() => 1),
      labels: every.map((position) => leadLabel(place, leader(position), weights.row(position))),
    };
  }
  const own = weights.column(unit);
  const [least, most] = [Math.min(...own), Math.max(...own)];
  const weight = (position) => own[weights.rows === 1 ? 0 : position];
  return {
    weights,
    leaders,
    colours,
    unit,
    units: every.map(() => unit),
    classes: every.map(() => colourClass(colours, unit)),
    marks: every.map((position) => markOfWeight(place, unit, position, weight(position))),
    // From the least to the largest: weights that are nearly even differ too little to be seen.
    strengths: every.map((position) =>
      least === most ? 1 : (weight(position) - least) / (most - least),
    ),
    range: [least, most],
    labels: every.map(
      (position) => `weight ${twoDecimals(weight(position))} of ${unitName(place, unit)}`,
    ),
  };
}

function leadLabel(place, leader, row) {
  if (leader < 0) return "no unit leads, several have the same weight";
  return `${unitName(place, leader)} leads, weight ${twoDecimals(row[leader])}`;
}

// A unit that a position has not chosen has no weight there, which is not the same as a small one.
function markOfWeight(place, unit, position, weight) {
  if (place.chosen && !chosenAt(place, position).includes(unit)) return "–";
  return twoDecimals(weight).replace(/^0/, "");
}

function chosenAt(place, position) {
  return place.chosen[place.chosen.length === 1 ? 0 : position] ?? [];
}
