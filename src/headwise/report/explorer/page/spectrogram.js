// Speech: the colours of the units over a spectrogram, with the sound to play.

// Draws frames × frequencies, low frequencies at the bottom; the louder, the stronger.
async function drawSpectrogram(canvas, blob) {
  const spectrogram = await numbersOf(blob);
  const { rows: frames, columns: bins } = spectrogram;
  canvas.width = frames;
  canvas.height = bins;
  const context = canvas.getContext("2d");
  const image = context.createImageData(frames, bins);
  const ink = rgbOf("--text");
  for (let frame = 0; frame < frames; frame++) {
    const row = spectrogram.row(frame);
    for (let bin = 0; bin < bins; bin++) {
      const pixel = 4 * ((bins - 1 - bin) * frames + frame);
      image.data.set([...ink, 255 * row[bin] ** 2], pixel);
    }
  }
  context.putImageData(image, 0, 0);
}

class SpectrogramMap {
  constructor(stack, name, title, pointing) {
    this.stack = stack;
    this.name = name;
    this.pointing = pointing;
    this.frames = stack.tokens.length;
    this.sounds = make("canvas", { class: "spectrogram", "aria-hidden": "true" });
    this.colours = make("canvas", { class: "overlay", "aria-hidden": "true" });
    this.strip = make("canvas", { class: "strip", "aria-hidden": "true" });
    this.here = make("div", { class: "cursor", hidden: true });
    this.playhead = make("div", { class: "playhead", hidden: true });
    this.area = make(
      "div",
      { class: "sound-map", tabindex: "0", role: "slider", "aria-label": title },
      this.strip,
      make("div", { class: "layers" }, this.sounds, this.colours),
      this.here,
      this.playhead,
    );
    this.area.setAttribute("aria-valuemin", "0");
    this.area.setAttribute("aria-valuenow", "0");
    this.area.setAttribute("aria-valuetext", "no frame is picked");
    this.area.setAttribute("aria-valuemax", String(this.frames - 1));
    this.audio = stack.sound
      ? make("audio", { controls: true, src: stack.sound, "aria-label": title })
      : null;
    this.element = make(
      "div",
      {},
      make("h3", { text: title }),
      this.area,
      make("p", { class: "muted small", text: this.scaleText() }),
      this.audio,
    );
    if (stack.spectrogram) drawSpectrogram(this.sounds, stack.spectrogram);
    this.area.addEventListener("pointermove", (event) =>
      pointing.point(this.at(this.frameOf(event))),
    );
    this.area.addEventListener("pointerleave", () => pointing.point(null));
    this.area.addEventListener("click", (event) => {
      pointing.pick(this.at(this.frameOf(event)));
      if (this.audio) this.audio.currentTime = this.frameOf(event) * stack.frame_seconds;
    });
    this.area.addEventListener("keydown", (event) => this.move(event));
    this.audio?.addEventListener("timeupdate", () => this.play());
    this.audio?.addEventListener("play", () => this.follow());
  }

  scaleText() {
    const seconds = (this.frames * this.stack.frame_seconds).toFixed(2);
    const kilohertz = this.stack.rate ? ` and from 0 to ${this.stack.rate / 2000} kHz upwards` : "";
    return `From 0 to ${seconds} s to the right${kilohertz}; the stronger, the louder. Above it the colours alone.`;
  }

  at(position) {
    return { stack: this.name, position };
  }

  frameOf(event) {
    const box = this.area.getBoundingClientRect();
    const frame = Math.floor(((event.clientX - box.left) / box.width) * this.frames);
    return Math.min(Math.max(frame, 0), this.frames - 1);
  }

  move(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: 10, ArrowDown: -10 }[event.key];
    if (!step) return;
    event.preventDefault();
    const here = view.token?.stack === this.name ? view.token.position : -step;
    const position = Math.min(Math.max(here + step, 0), this.frames - 1);
    this.pointing.pick(this.at(position), { again: true });
  }

  // The playhead moves with the sound, smoothly unless the reader wants less motion.
  follow() {
    this.play();
    const smooth = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (smooth && !this.audio.paused) requestAnimationFrame(() => this.follow());
  }

  play() {
    const share = this.audio.currentTime / (this.frames * this.stack.frame_seconds);
    this.playhead.hidden = share === 0;
    this.playhead.style.left = `${100 * Math.min(share, 1)}%`;
  }

  paint(painting) {
    this.painting = painting;
    this.colours.hidden = this.strip.hidden = !painting;
    if (!painting) return;
    const pixels = pixelsOf(painting, this.frames);
    put(this.strip, pixels, this.frames, 1);
    this.over(pixels);
  }

  // While a token is looked at, the colours make room for what it reads.
  read(shares) {
    if (shares === null) return this.paint(this.painting);
    this.colours.hidden = false;
    this.over(heatPixels(shares, this.frames));
  }

  over(pixels) {
    put(this.colours, pixels, this.frames, 1);
    this.colours.style.opacity = view.opacity;
  }

  mark(position) {
    this.here.hidden = position === null;
    if (position === null) return;
    putAt(this.here, "left", "width", position, this.frames);
    this.area.setAttribute("aria-valuenow", String(position));
    const label = this.painting?.labels[position];
    this.area.setAttribute(
      "aria-valuetext",
      `${this.stack.tokens[position]}${label ? `: ${label}` : ""}`,
    );
  }
}
