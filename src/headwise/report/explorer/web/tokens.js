// The tokens of a text: each in the colour of its unit, with the unit's number or weight under it.

class TokenRow {
  constructor(stack, name, title, pointing) {
    this.stack = stack;
    this.name = name;
    this.pointing = pointing;
    const spaced = stack.tokens.some((token) => token.startsWith(" "));
    this.tokens = stack.tokens.map((token, position) => {
      const text = make("span", { class: "text", text: tokenText(token) });
      const mark = make("span", { class: "mark", "aria-hidden": "true" });
      const made = make("li", { class: "token", role: "option", tabindex: "-1" }, text, mark);
      made.dataset.position = position;
      made.classList.toggle("starts-word", !spaced || token.startsWith(" "));
      made.classList.toggle("special", stack.special.includes(position));
      made.classList.toggle("first-written", position > 0 && position === stack.given);
      return made;
    });
    this.tokens[0]?.setAttribute("tabindex", "0");
    const attributes = { class: "tokens", role: "listbox", "aria-label": title };
    this.list = make("ol", attributes, ...this.tokens);
    this.element = make("div", {}, make("h3", { text: title }), this.list);
    this.on("pointerover", (position, event) => {
      if (event.pointerType !== "touch") pointing.point(this.at(position));
    });
    this.list.addEventListener("pointerleave", () => pointing.point(null));
    this.on("click", (position) => pointing.pick(this.at(position)));
    this.on("focusin", (position, event) => {
      if (event.target.matches(":focus-visible")) pointing.pick(this.at(position), { again: true });
    });
    this.on("keydown", (position, event) => this.move(position, event));
  }

  // Listens to what happens at a token.
  on(name, happens) {
    this.list.addEventListener(name, (event) => {
      const token = event.target.closest(".token");
      if (token) happens(Number(token.dataset.position), event);
    });
  }

  at(position) {
    return { stack: this.name, position };
  }

  // Arrows go to the neighbours, up and down to the nearest token of another line.
  move(position, event) {
    const last = this.tokens.length - 1;
    const next = {
      ArrowLeft: () => position - 1,
      ArrowRight: () => position + 1,
      ArrowUp: () => this.nearestInLine(position, -1),
      ArrowDown: () => this.nearestInLine(position, 1),
      Home: () => 0,
      End: () => last,
    }[event.key]?.();
    const picks = event.key === "Enter" || event.key === " ";
    if (next === undefined && !picks) return;
    event.preventDefault();
    if (picks) this.pointing.pick(this.at(position));
    else this.focus(Math.min(Math.max(next, 0), last));
  }

  nearestInLine(position, step) {
    const here = this.tokens[position];
    const middle = (token) => token.offsetLeft + token.offsetWidth / 2;
    let line = null;
    let found = position;
    for (let next = position + step; this.tokens[next]; next += step) {
      const token = this.tokens[next];
      if (token.offsetTop === here.offsetTop) continue;
      line ??= token.offsetTop;
      if (token.offsetTop !== line) break;
      const away = Math.abs(middle(token) - middle(here));
      if (found === position || away < Math.abs(middle(this.tokens[found]) - middle(here))) {
        found = next;
      }
    }
    return found;
  }

  focus(position) {
    for (const token of this.tokens) token.setAttribute("tabindex", "-1");
    this.tokens[position].setAttribute("tabindex", "0");
    this.tokens[position].focus();
    this.pointing.pick(this.at(position), { again: true });
  }

  // Colours the tokens. A painting of null takes the colours away.
  paint(painting) {
    this.tokens.forEach((token, position) => {
      const [text, mark] = token.children;
      token.classList.remove(...[...token.classList].filter((name) => name.startsWith("unit-")));
      mark.textContent = painting ? painting.marks[position] : "";
      const label = painting ? `: ${painting.labels[position]}` : "";
      token.setAttribute("aria-label", `${text.textContent}${label}`);
      token.classList.toggle("plain", !painting);
      if (!painting) return;
      token.classList.add(painting.classes[position]);
      token.style.setProperty("--strength", painting.strengths[position]);
    });
  }

  // Shades the tokens by how much they are read; null takes the shades away.
  read(shares) {
    this.list.classList.toggle("read", shares !== null);
    const most = shares === null ? 1 : Math.max(...shares.map(Math.abs), 1e-9);
    this.tokens.forEach((token, position) => {
      const share = shares === null ? 0 : shares[position];
      token.style.setProperty("--read", Math.abs(share) / most);
      token.classList.toggle("negative", share < 0);
    });
  }

  // Marks the token that the pointer or the keyboard is at.
  mark(position) {
    this.tokens.forEach((token, index) => {
      token.classList.toggle("here", index === position);
      token.setAttribute("aria-selected", String(index === position));
      if (position !== null) token.setAttribute("tabindex", index === position ? "0" : "-1");
    });
  }
}
