// Images and sounds: the colours of the units over the pixels, or over a spectrogram.

// What both have in common: an area whose positions are pointed at, under a layer of colours.
class ColourMap {
  // Args: the stack with its name and title, what to call, the colours in columns and rows, and the
  // position of the first of them.
  constructor(stack, name, title, pointing, { width, height, first }) {
    Object.assign(this, { stack, name, title, pointing, width, height, first });
    this.last = first + width * height - 1;
    this.drawn = make("canvas", { "aria-hidden": "true" });
    this.colours = make("canvas", { "aria-hidden": "true" });
    this.here = make("div", { class: "cursor", hidden: true });
  }

  listen(area) {
    this.area = area;
    const at = (event) => this.at(this.positionOf(event));
    area.addEventListener("pointermove", (event) => this.pointing.point(at(event)));
    area.addEventListener("pointerleave", () => this.pointing.point(null));
    area.addEventListener("click", (event) => this.pointing.pick(at(event)));
    area.addEventListener("keydown", (event) => this.move(event));
  }

  at(position) {
    return { stack: this.name, position };
  }

  positionOf(event) {
    const { row, column } = cellAt(this.area, event, this.height, this.width);
    return this.first + row * this.width + column;
  }

  move(event) {
    const step = this.steps[event.key];
    if (!step) return;
    event.preventDefault();
    const here = view.token?.stack === this.name ? view.token.position : this.first - step;
    const next = this.reached(here + step);
    if (next < this.first || next > this.last) return;
    this.pointing.pick(this.at(next), { again: true });
  }

  paint(painting) {
    this.painting = painting;
    this.colours.hidden = !painting;
    if (painting) this.over(pixelsOf(painting, this.stack.tokens.length));
  }

  // While a token is looked at, the colours make room for what it reads.
  read(shares) {
    if (shares === null) return this.paint(this.painting);
    this.colours.hidden = false;
    this.over(heatPixels(shares, this.stack.tokens.length));
  }

  // Draws the colours of all positions; those before the first pixel are none of the image.
  over(pixels) {
    const shown = pixels.slice(4 * this.first, 4 * (this.last + 1));
    put(this.colours, shown, this.width, this.height);
    this.colours.style.opacity = view.opacity;
  }

  labelOf(position, comma) {
    const label = this.painting?.labels[position];
    return `${tokenName(this.stack, position)}${label ? `${comma} ${label}` : ""}`;
  }
}

class ImageMap extends ColourMap {
  constructor(stack, name, title, pointing) {
    const { width, height, offset } = stack;
    super(stack, name, title, pointing, { width, height, first: offset });
    this.steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width };
    this.drawn.className = "pixels";
    this.colours.className = "overlay pixels";
    const area = make(
      "div",
      { class: "image-map", tabindex: "0", role: "group", "aria-roledescription": "image" },
      this.drawn,
      this.colours,
      this.here,
    );
    area.setAttribute("aria-label", `${title}, arrows go through the pixels`);
    area.style.aspectRatio = `${width} / ${height}`;
    this.element = make("div", {}, make("h3", { text: title }), area);
    this.listen(area);
    const colours = stack.tokens.slice(offset).map((token) => [...rgbOfHex(token), 255]);
    put(this.drawn, Uint8ClampedArray.from(colours.flat()), width, height);
  }

  reached(position) {
    return position;
  }

  mark(position) {
    const pixel = (position ?? -1) - this.first;
    this.here.hidden = pixel < 0 || position > this.last;
    if (this.here.hidden) return;
    putAt(this.here, "left", "width", pixel % this.width, this.width);
    putAt(this.here, "top", "height", Math.floor(pixel / this.width), this.height);
    this.area.setAttribute("aria-label", `${this.title}: ${this.labelOf(position, ",")}`);
  }
}

// Speech, with the sound to play.
class SpectrogramMap extends ColourMap {
  constructor(stack, name, title, pointing) {
    super(stack, name, title, pointing, { width: stack.tokens.length, height: 1, first: 0 });
    this.steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: 10, ArrowDown: -10 };
    this.drawn.className = "spectrogram";
    this.colours.className = "overlay";
    this.strip = make("canvas", { class: "strip", "aria-hidden": "true" });
    this.playhead = make("div", { class: "playhead", hidden: true });
    const area = make(
      "div",
      {
        class: "sound-map",
        tabindex: "0",
        role: "slider",
        "aria-label": title,
        "aria-valuemin": 0,
        "aria-valuemax": this.last,
        "aria-valuenow": 0,
        "aria-valuetext": "no frame is picked",
      },
      this.strip,
      make("div", { class: "layers" }, this.drawn, this.colours),
      this.here,
      this.playhead,
    );
    const sound = { controls: true, src: stack.sound, "aria-label": title };
    this.audio = stack.sound ? make("audio", sound) : null;
    const scale = make("p", { class: "muted small", text: this.scaleText() });
    this.element = make("div", {}, make("h3", { text: title }), area, scale, this.audio);
    this.listen(area);
    if (stack.spectrogram) drawSpectrogram(this.drawn, stack.spectrogram);
    if (!this.audio) return;
    area.addEventListener("click", (event) => {
      this.audio.currentTime = this.positionOf(event) * stack.frame_seconds;
    });
    this.audio.addEventListener("timeupdate", () => this.play());
    this.audio.addEventListener("play", () => this.follow());
  }

  scaleText() {
    const seconds = (this.width * this.stack.frame_seconds).toFixed(2);
    const kilohertz = this.stack.rate ? ` and from 0 to ${this.stack.rate / 2000} kHz upwards` : "";
    return `From 0 to ${seconds} s to the right${kilohertz}; the stronger, the louder. Above it the colours alone.`;
  }

  reached(position) {
    return Math.min(Math.max(position, 0), this.last);
  }

  // The playhead moves with the sound, smoothly unless the reader wants less motion.
  follow() {
    this.play();
    const smooth = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (smooth && !this.audio.paused) requestAnimationFrame(() => this.follow());
  }

  play() {
    const share = this.audio.currentTime / (this.width * this.stack.frame_seconds);
    this.playhead.hidden = share === 0;
    this.playhead.style.left = `${100 * Math.min(share, 1)}%`;
  }

  paint(painting) {
    super.paint(painting);
    this.strip.hidden = !painting;
    if (painting) put(this.strip, pixelsOf(painting, this.width), this.width, 1);
  }

  mark(position) {
    this.here.hidden = position === null;
    if (position === null) return;
    putAt(this.here, "left", "width", position, this.width);
    this.area.setAttribute("aria-valuenow", String(position));
    this.area.setAttribute("aria-valuetext", this.labelOf(position, ":"));
  }
}

// Draws frames × frequencies, low frequencies at the bottom; the louder, the stronger.
async function drawSpectrogram(canvas, blob) {
  const spectrogram = await numbersOf(blob);
  const { rows: frames, columns: bins } = spectrogram;
  const data = new Uint8ClampedArray(4 * frames * bins);
  const ink = rgbOf("--text");
  for (let frame = 0; frame < frames; frame++) {
    spectrogram.row(frame).forEach((loudness, bin) => {
      data.set([...ink, 255 * loudness ** 2], 4 * ((bins - 1 - bin) * frames + frame));
    });
  }
  put(canvas, data, frames, bins);
}
