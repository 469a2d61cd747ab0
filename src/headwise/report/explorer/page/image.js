// Images: the colours of the units over the pixels.

class ImageMap {
  constructor(stack, name, title, pointing) {
    this.stack = stack;
    this.name = name;
    this.pointing = pointing;
    this.pixels = stack.width * stack.height;
    this.image = make("canvas", { class: "pixels", "aria-hidden": "true" });
    this.colours = make("canvas", { class: "overlay pixels", "aria-hidden": "true" });
    this.here = make("div", { class: "cursor", hidden: true });
    this.area = make(
      "div",
      { class: "image-map", tabindex: "0", role: "group", "aria-roledescription": "image" },
      this.image,
      this.colours,
      this.here,
    );
    this.title = title;
    this.area.setAttribute("aria-label", `${title}, arrows go through the pixels`);
    this.element = make("div", {}, make("h3", { text: title }), this.area);
    this.draw();
    this.area.addEventListener("pointermove", (event) =>
      pointing.point(this.at(this.positionOf(event))),
    );
    this.area.addEventListener("pointerleave", () => pointing.point(null));
    this.area.addEventListener("click", (event) => pointing.pick(this.at(this.positionOf(event))));
    this.area.addEventListener("keydown", (event) => this.move(event));
  }

  draw() {
    const { width, height, offset, tokens } = this.stack;
    const data = new Uint8ClampedArray(4 * this.pixels);
    for (let pixel = 0; pixel < this.pixels; pixel++) {
      const colour = tokens[pixel + offset] ?? "#000000";
      const part = (start) => parseInt(colour.slice(start, start + 2), 16);
      data.set([part(1), part(3), part(5), 255], 4 * pixel);
    }
    put(this.image, data, width, height);
    this.area.style.aspectRatio = `${width} / ${height}`;
  }

  at(position) {
    return { stack: this.name, position };
  }

  positionOf(event) {
    const box = this.area.getBoundingClientRect();
    const { width, height, offset } = this.stack;
    const inside = (share, size) => Math.min(Math.max(Math.floor(share * size), 0), size - 1);
    const row = inside((event.clientY - box.top) / box.height, height);
    return offset + row * width + inside((event.clientX - box.left) / box.width, width);
  }

  move(event) {
    const { width, offset } = this.stack;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width }[event.key];
    if (!step) return;
    event.preventDefault();
    const here = view.token?.stack === this.name ? view.token.position : offset - step;
    const next = here + step;
    if (next < offset || next >= offset + this.pixels) return;
    this.pointing.pick(this.at(next), { again: true });
  }

  paint(painting) {
    this.painting = painting;
    this.colours.hidden = !painting;
    if (!painting) return;
    this.over(pixelsOf(painting, this.stack.tokens.length));
  }

  read(shares) {
    if (shares === null) return this.paint(this.painting);
    this.colours.hidden = false;
    this.over(heatPixels(shares, this.stack.tokens.length));
  }

  // Draws the colours of all positions; those before the first pixel are none of the image.
  over(pixels) {
    const { width, height, offset } = this.stack;
    const data = new Uint8ClampedArray(4 * this.pixels);
    data.set(pixels.subarray(4 * offset, 4 * (offset + this.pixels)));
    put(this.colours, data, width, height);
    this.colours.style.opacity = view.opacity;
  }

  mark(position) {
    const pixel = (position ?? -1) - this.stack.offset;
    this.here.hidden = pixel < 0 || pixel >= this.pixels;
    if (this.here.hidden) return;
    const { width, height } = this.stack;
    putAt(this.here, "left", "width", pixel % width, width);
    putAt(this.here, "top", "height", Math.floor(pixel / width), height);
    const label = this.painting?.labels[position];
    this.area.setAttribute(
      "aria-label",
      `${this.title}: ${tokenName(this.stack, position)}${label ? `, ${label}` : ""}`,
    );
  }
}
