// One run: what the model makes of the input, and its system at the site and layer in view.

class Column {
  // `before` is the output of the whole model where something is removed from it, else null.
  constructor(run, number, before, actions) {
    this.run = run;
    this.number = number;
    this.actions = actions;
    this.pointing = {
      point: (token) => actions.point(token && { ...token, run: number }),
      pick: (token, options) => actions.pick({ ...token, run: number }, options),
    };
    this.stacks = new Map();
    this.matrix = new Matrix(this.pointing);
    this.hint = make("p", { class: "muted small" });
    this.heading = make("p", { class: "explanation" });
    this.legend = make("div");
    this.sentences = make("div", { class: "sentences" });
    this.inspector = make("div", { class: "inspector" });
    this.attention = make("div", { class: "attention" });
    const place = make("div", { class: "place" }, this.sentences, this.inspector, this.attention);
    this.body = make("div", { class: "place-frame" }, place);
    this.element = make(
      "section",
      { class: "run", "aria-label": run.name },
      make("h2", { text: run.name, class: actions.alone ? "hidden" : null }),
      outputOf(run, before),
      this.heading,
      this.legend,
      this.body,
    );
  }

  stackView(name) {
    if (!this.stacks.has(name)) {
      const stack = this.run.stacks[name];
      const View = { text: TokenRow, image: ImageMap, speech: SpectrogramMap }[stack.kind];
      this.stacks.set(name, new View(stack, name, stackName(this.run, name), this.pointing));
    }
    return this.stacks.get(name);
  }

  // Draws the place in view.
  async show() {
    const place = placeInView(this.run);
    this.wanted = place;
    this.body.hidden = this.legend.hidden = place === null;
    if (!place) {
      this.place = null;
      this.heading.textContent = "This model has no attention at this place.";
      return;
    }
    const positions = this.run.stacks[place.stack].tokens.length;
    const unit = unitOf(this.number, place);
    const painting = await paintingOf(`${this.number} ${place.path}`, place, positions, unit);
    if (this.wanted !== place || unitOf(this.number, place) !== unit) return; // the reader has gone on
    this.place = place;
    this.painting = painting;
    const words = this.run.words[place.system];
    this.heading.replaceChildren(
      make("strong", {
        text: `${placeTitle(this.run, place)}: ${titleOf(place, words)}. `,
      }),
      explanationOf(this.run, place, painting),
    );
    this.legend.replaceChildren(
      ...(painting
        ? [
            legendOf(this.run, this.number, place, painting, (unit) =>
              this.actions.colour(this.number, unit),
            ),
          ]
        : []),
    );
    this.showStacks(place, painting);
    this.showAttention(place);
    await this.point();
  }

  showStacks(place, painting) {
    const attention = attentionInView(place);
    const names = new Set([attention?.keys, attention?.queries, place.stack]);
    const shown = [...names]
      .filter((name) => name in this.run.stacks)
      .map((name) => [name, this.stackView(name)]);
    this.hint.textContent = hintOf(this.run, attention);
    const elements = [...shown.map(([, stack]) => stack.element), this.hint];
    const there = [...this.sentences.children];
    // Elements stay where they are, or else one of them would lose the focus.
    if (there.length !== elements.length || there.some((each, index) => each !== elements[index])) {
      this.sentences.replaceChildren(...elements);
    }
    for (const [name, stack] of shown) stack.paint(name === place.stack ? painting : null);
  }

  showAttention(place) {
    const attention = attentionInView(place);
    if (!attention) return this.attention.replaceChildren();
    const title = `Attention of ${headName(place, attention, headInView(attention))}`;
    const all = allHeads(this.number, place, attention, this.actions.look);
    this.attention.replaceChildren(
      make("h3", { text: title }),
      this.matrix.element,
      ...(all ? [all] : []),
    );
    this.matrix.show(this.run, place, attention);
  }

  // The token in view, if this run has the same text.
  token() {
    const token = tokenInView();
    const stack = this.run.stacks[token?.stack];
    if (!stack || token.position >= stack.tokens.length) return null;
    return this.actions.sameText(token, this.number) ? token : null;
  }

  // Shows what is at the token in view: its numbers, and what it reads.
  async point() {
    const { place, painting } = this;
    if (!place) return;
    const token = this.token();
    const attention = attentionInView(place);
    const reading = await readingAt(attention, token);
    if (this.place !== place || !sameToken(token, this.token())) return;
    for (const [name, stack] of this.stacks) {
      stack.mark(token?.stack === name ? token.position : null);
      stack.read(reading?.stack === name ? reading.shares : null);
    }
    this.matrix.mark(token);
    const focus = focused();
    this.inspector.replaceChildren(...this.inspected(place, painting, token, attention, reading));
    focusAgain(focus);
  }

  inspected(place, painting, token, attention, reading) {
    const stack = this.run.stacks[token?.stack];
    const at = token?.stack === place.stack ? token.position : null;
    const name = stack ? capital(tokenName(stack, token.position)) : "The whole input";
    const parts = [
      make("h3", {}, name, stack ? make("small", { text: ` position ${token.position}` }) : ""),
    ];
    const removal = this.actions.removalOf(this.number, place);
    if (painting) {
      parts.push(...weightTable(this.number, place, painting, at, removal?.ofUnit));
    }
    if (attention) {
      const query = reading?.reads ? token.position : null;
      const head = headName(place, attention, headInView(attention), query);
      parts.push(readingTable(this.run, reading, head, THINGS[this.run.stacks[place.stack].kind]));
    }
    const predictions = this.run.output.predictions.filter((each) => each.stack === place.stack);
    if (predictions.length) {
      const here = predictions.find((each) => each.position === at);
      parts.push(
        candidateTable(
          "What the model takes for probable here",
          here?.best ?? [],
          predictions[0].best.length,
        ),
      );
    }
    if (removal?.others) parts.push(removal.others);
    return parts;
  }
}

function titleOf(place, words) {
  if (place.decides === "nothing") return place.system;
  const units = `${place.units} ${words.units}`;
  return words.decision === words.units ? units : `${words.decision} of ${units}`;
}
