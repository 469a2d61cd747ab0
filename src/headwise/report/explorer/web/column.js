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
    const title = `${placeTitle(this.run, place)}: ${titleOf(place, words)}. `;
    const explanation = explanationOf(this.run, place, painting);
    this.heading.replaceChildren(make("strong", { text: title }), explanation);
    const colour = (unit) => this.actions.colour(this.number, unit);
    const legend = painting && legendOf(this.run, this.number, place, painting, colour);
    this.legend.replaceChildren(...[legend].filter(Boolean));
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
    const shown = [make("h3", { text: title }), this.matrix.element, all];
    this.attention.replaceChildren(...shown.filter(Boolean));
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
    const number = stack && make("small", { text: ` position ${token.position}` });
    const parts = [make("h3", {}, name, number ?? "")];
    const removal = this.actions.removalOf(this.number, place);
    if (painting) parts.push(...weightTable(this.number, place, painting, at, removal?.ofUnit));
    if (attention) {
      const query = reading?.reads ? token.position : null;
      const head = headName(place, attention, headInView(attention), query);
      parts.push(readingTable(this.run, reading, head, THINGS[this.run.stacks[place.stack].kind]));
    }
    const predictions = this.run.output.predictions.filter((each) => each.stack === place.stack);
    if (predictions.length) {
      const best = predictions.find((each) => each.position === at)?.best ?? [];
      const caption = "What the model takes for probable here";
      parts.push(candidateTable(caption, best, predictions[0].best.length));
    }
    if (removal?.others) parts.push(removal.others);
    return parts;
  }
}

function titleOf(place, words) {
  if (place.decides === "nothing") return place.system;
  return `weights of ${place.units} ${words.units}`;
}

// What the colours mean, as buttons that choose what is coloured.

// More buttons than these are hard to look through, and the others are in a list.
const BUTTONS = 12;

function legendOf(run, number, place, painting, choose) {
  const words = run.words[place.system];
  const chosen = unitOf(number, place);
  const often = ledBy(place.units, painting.leaders);
  const shown = [...often.keys()].filter(
    (unit) => place.units <= BUTTONS || painting.colours[unit] !== null,
  );
  const button = (unit, text, by, look) =>
    make("button", {
      type: "button",
      class: look,
      text,
      "aria-pressed": String(chosen === unit),
      "aria-label": `Colour by the ${by}`,
      title: `Colour by the ${by}`,
      "data-focus": `unit ${number} ${unit}`,
      onclick: () => choose(chosen === unit ? null : unit),
    });
  const buttons = shown.map((unit) => {
    const look = `swatch ${colourClass(painting.colours, unit)}`;
    return button(unit, String(unit), `weight of ${unitName(place, unit)}`, look);
  });
  const leading = `leading ${words.unit}`;
  return make(
    "div",
    { class: "legend", role: "group", "aria-label": "Colours" },
    button(null, leading, leading, "choice"),
    make("span", { class: "muted small", text: `or weight of ${words.unit}` }),
    ...buttons,
    shown.length < place.units ? listOfUnits(place, shown, chosen, choose) : null,
  );
}

function listOfUnits(place, shown, chosen, choose) {
  const list = make("select", {
    class: "small",
    "aria-label": "Colour by the weight of another",
    onchange: () => choose(list.value === "" ? null : Number(list.value)),
  });
  list.append(make("option", { value: "", text: "another …" }));
  for (let unit = 0; unit < place.units; unit++) {
    const option = { value: unit, text: unitName(place, unit), selected: chosen === unit };
    if (!shown.includes(unit)) list.append(make("option", option));
  }
  return list;
}

// What is seen and what can be done, in sentences.

const THINGS = { text: "token", image: "pixel", speech: "frame" };

// What is seen, in a few sentences, for those who see the page for the first time.
function explanationOf(run, place, painting) {
  const words = run.words[place.system];
  const thing = THINGS[run.stacks[place.stack].kind];
  if (place.decides === "nothing") {
    return "This system adds up its heads and decides nothing, so that nothing is coloured.";
  }
  const sentences = [];
  if (place.chosen) {
    const number = chosenAt(place, 0).length;
    sentences.push(`Each ${thing} chooses ${number} of the ${place.units} ${words.units}.`);
  }
  if (painting.unit !== null) {
    const range = painting.range.map(twoDecimals).join(" to ");
    const weight = `the weight of ${unitName(place, painting.unit)}, from ${range}`;
    sentences.push(`The stronger the colour of a ${thing}, the larger ${weight}.`);
    if (thing === "token") sentences.push("The number is the weight.");
    if (place.chosen) sentences.push(`A ${thing} that has not chosen it has –.`);
  } else {
    const shown =
      thing === "token" ? "Colour and number of a token tell" : `The colour of a ${thing} tells`;
    sentences.push(`${shown} which ${words.unit} has the largest weight there.`);
    if (painting.units.includes(-1)) sentences.push("= stands where several have the same weight.");
    if (painting.colours.includes(null)) {
      const often = `The eight ${words.units} that lead most often`;
      sentences.push(`${often} have a colour, the others are grey.`);
    }
  }
  const all = { sequence: "the whole input", everything: "every input" }[place.decides];
  if (all) sentences.push(`There is one decision for ${all}: all ${thing}s have the same.`);
  return sentences.join(" ");
}

// What happens at the pointer.
function hintOf(run, attention) {
  if (!attention) return "";
  const thing = THINGS[run.stacks[attention.queries].kind];
  if (attention.keys === null) return `Point at a ${thing} to see its numbers.`;
  if (isCross(attention)) {
    return "Point at either text: blue in the other is what is read from there, or what reads it.";
  }
  return `Point at a ${thing}: blue is what the heads read from there.`;
}
