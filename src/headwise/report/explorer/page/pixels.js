// The colours of positions as pixels, for what is drawn on a canvas.

function put(canvas, data, width, height) {
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
}

// The colours of a painting: red, green, blue and opacity of each position.
function pixelsOf(painting, positions) {
  const colours = new Map();
  return mixed(positions, painting.strengths, (position) => {
    const unit = painting.units[position];
    if (!colours.has(unit)) colours.set(unit, rgbOfUnit(painting.colours, unit));
    return colours.get(unit);
  });
}

// How much of each position is read, as one colour.
function heatPixels(shares, positions) {
  const most = Math.max(...shares, 1e-9);
  const heat = rgbOf("--heat");
  return mixed(
    positions,
    shares.map((share) => Math.sqrt(share / most)),
    () => heat,
  );
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
