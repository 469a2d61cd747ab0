// The colours of positions as pixels, for what is drawn on a canvas.

function put(canvas, data, width, height) {
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
}

// The colours of a painting as red, green, blue and opacity of each position.
function pixelsOf(painting, positions) {
  const data = new Uint8ClampedArray(4 * positions);
  const colours = new Map();
  for (let position = 0; position < positions; position++) {
    const unit = painting.units[position];
    if (!colours.has(unit)) colours.set(unit, rgbOfUnit(painting.colours, unit));
    data.set([...colours.get(unit), 255 * painting.strengths[position]], 4 * position);
  }
  return data;
}

// How much of each position is read, as one colour of more or less opacity.
function heatPixels(shares, positions) {
  const data = new Uint8ClampedArray(4 * positions);
  const heat = rgbOf("--heat");
  const most = Math.max(...shares, 1e-9);
  for (let position = 0; position < positions; position++) {
    data.set([...heat, 255 * Math.sqrt((shares[position] ?? 0) / most)], 4 * position);
  }
  return data;
}
