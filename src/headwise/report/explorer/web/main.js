// The page: it is drawn from the payload, and anew from each answer of a running model.

class Page {
  constructor(payload) {
    this.main = document.getElementById("page");
    this.announcement = document.getElementById("announcement");
    this.whole = payload.runs.map((run) => run.output); // outputs of the models with nothing removed
    // The text of an item is asked for by its number: so its reference or label comes along.
    this.input = payload.item
      ? { item: payload.item.number, text: null, target: payload.target }
      : { item: null, text: payload.text, target: payload.target };
    this.removals = new Removals((before) => this.remove(before));
    this.controls = new Controls((change) => this.look(change));
    this.removed = make("div");
    this.note = make("p", { class: "note" });
    this.columns = [];
    this.runs = make("div", { class: "runs" });
    this.fields = payload.served ? new InputFields(payload, (input) => this.send(input)) : null;
    const title = make("h1", { text: titleOfPage(payload) });
    const parts = [
      make("header", {}, title, payload.served ? null : inputOf(payload)),
      this.fields?.element,
      this.note,
      this.removed,
      this.controls.element,
      this.runs,
      footOf(payload),
    ];
    this.main.replaceChildren(...parts.filter(Boolean));
    readView();
    this.take(payload);
    addEventListener("hashchange", () => {
      readView();
      this.draw();
    });
    addEventListener("keydown", (event) => this.key(event));
    // What is drawn on a canvas has the colours of its time.
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.take(this.payload));
  }

  // Takes a payload: that of the page, or an answer.
  take(payload) {
    this.payload = payload;
    payload.runs.forEach((run, number) => (run.number = number));
    if (!this.removals.list.length) {
      this.whole = payload.runs.map((run) => run.output);
      this.wholeOf = JSON.stringify(this.input);
    }
    this.sites = sitesOf(payload.runs);
    this.columns = payload.runs.map(
      (run, number) => new Column(run, number, this.before(number), this.actions()),
    );
    return this.draw();
  }

  // What the whole model made, where something is removed from this run.
  before(number) {
    const changed = this.removals.list.some((each) => each.run === number);
    return changed ? this.whole[number] : null;
  }

  actions() {
    return {
      alone: this.payload.runs.length === 1,
      point: (token) => {
        if (sameToken(pointed, token)) return;
        pointed = token;
        this.pointSoon();
      },
      pick: (token, { again = false } = {}) => {
        const letGo = !again && sameToken(view.token, token);
        view.token = letGo ? null : token;
        pointed = null;
        writeView();
        this.point();
        this.announceToken();
      },
      look: (change) => this.look(change),
      colour: (run, unit) => {
        view.units = this.payload.runs.map((_, number) => view.units[number] ?? null);
        view.units[run] = unit;
        this.look({});
      },
      removalOf: (number, place) =>
        this.payload.served ? this.removals.of(this.payload.runs[number], place) : null,
      sameText: (token, number) => this.sameText(token, number),
    };
  }

  // Whether a token of one run is that of another too. One from the address is of every run.
  sameText(token, number) {
    if (token.run === undefined || token.run === number) return true;
    const tokens = (run) => this.payload.runs[run]?.stacks[token.stack]?.tokens.join("\n");
    return tokens(token.run) === tokens(number);
  }

  look(change) {
    Object.assign(view, change);
    this.draw();
  }

  // Draws what is in view. A view that there is not becomes one that there is.
  async draw() {
    const { payload, columns } = this;
    const { runs } = payload;
    if (!this.sites.has(view.site)) view.site = firstPlace(runs.flatMap((run) => run.places)).site;
    const { layers, places } = this.sites.get(view.site);
    view.layer = view.layer === null ? firstPlace(places).layer : nearest(layers, view.layer);
    if (view.run !== null && !(view.run in runs)) view.run = null;
    writeView();
    const focus = focused();
    this.controls.update(runs, this.sites);
    this.main.style.setProperty("--controls", `${this.controls.element.offsetHeight}px`);
    const isHidden = (number) => view.run !== null && view.run !== number;
    columns.forEach((column, number) => (column.element.hidden = isHidden(number)));
    await Promise.all(columns.map((column) => (column.element.hidden ? null : column.show())));
    if (this.columns !== columns) return; // another answer has come
    // New columns take the place of old ones when they are drawn, so that nothing flickers.
    if (columns[0].element.parentElement !== this.runs) {
      this.runs.replaceChildren(...columns.map((column) => column.element));
      this.removed.replaceChildren(...[this.removals.shown(runs)].filter(Boolean));
      this.note.textContent = payload.note;
      this.note.hidden = !payload.note;
    }
    focusAgain(focus);
    document.documentElement.dataset.drawn = Math.round(performance.now());
  }

  point() {
    for (const column of this.columns) if (!column.element.hidden) column.point();
  }

  // The pointer may move faster than the page is drawn.
  pointSoon() {
    this.pointing ??= requestAnimationFrame(() => {
      this.pointing = undefined;
      this.point();
    });
  }

  announceToken() {
    const column = this.columns[view.token?.run ?? 0];
    const stack = column?.run.stacks[view.token?.stack];
    if (!stack || stack.kind === "text") return; // tokens of a text have labels of their own
    const label = column.painting?.labels[view.token.position];
    this.announce(`${tokenName(stack, view.token.position)}${label ? `: ${label}` : ""}`);
  }

  announce(text) {
    this.announcement.textContent = text;
  }

  key(event) {
    if (event.target.matches("input, textarea, select")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { "[": -1, "]": 1 }[event.key];
    if (event.key === "Escape") {
      view.token = pointed = null;
      writeView();
      this.point();
    }
    if (!step) return;
    event.preventDefault();
    const { layers } = this.sites.get(view.site);
    const next = layers[layers.indexOf(view.layer) + step];
    if (next === undefined) return;
    this.look({ layer: next });
    this.announce(`Layer ${next}`);
  }

  // Sends an input.
  send(input) {
    this.input = { item: null, text: null, target: null, ...input };
    view.token = pointed = null;
    coloursOfPlaces.clear();
    return this.ask();
  }

  // Asks with what is removed now. If the model refuses, it is as it was before.
  remove(before) {
    return this.ask(() => (this.removals.list = before));
  }

  // Where something is removed, the whole model is asked too, to compare with it, unless what it
  // makes of this input is known.
  async answer(question) {
    const input = JSON.stringify(this.input);
    if (this.removals.list.length && this.wholeOf !== input) {
      const whole = await ask({ ...question, ablations: [] });
      this.whole = whole.runs.map((run) => run.output);
      this.wholeOf = input;
    }
    return ask(question);
  }

  async ask(undo = () => {}) {
    const number = (this.asked = (this.asked ?? 0) + 1);
    this.main.setAttribute("aria-busy", "true");
    this.fields.say("The model is working …");
    const { item, text, target } = this.input;
    const ablations = this.removals.asked();
    const question = { text: text || null, target: target || null, ablations };
    if (item !== null && !question.text) question.item = item;
    try {
      const payload = await this.answer(question);
      if (number !== this.asked) return;
      await this.take(payload);
      if (item !== null) this.fields.show(payload);
      this.fields.say("");
      this.announce(this.summary());
    } catch (error) {
      if (number !== this.asked) return;
      undo();
      this.fields.sent = null; // the same text may be sent again
      this.fields.say(error.message, true);
    } finally {
      if (number === this.asked) this.main.removeAttribute("aria-busy");
    }
  }

  summary() {
    const textOf = ({ made }) => made.find((each) => each.by_model && each.text !== null);
    const texts = this.payload.runs.flatMap((run, number) => {
      const [made, whole] = [textOf(run.output), textOf(this.whole[number])];
      if (!made) return [];
      const same = this.removals.list.length && whole?.text === made.text ? "unchanged, " : "";
      return [`${run.name}: ${same}${made.text}`];
    });
    return texts.join(". ") || "The answer of the model is there.";
  }
}

// What stands above and below the models: a title, the input and how the page is used.

function titleOfPage({ title, runs }) {
  return runs.length > 2 ? `${runs.length} models side by side` : title;
}

// What the models read, of a page whose reader cannot change it.
function inputOf({ item, text, note }) {
  const parts = note ? [note] : [];
  if (item) parts.push(`Item ${item.number} of ${item.of} of the ${item.part} part.`);
  if (text !== null) parts.push(text);
  return make("p", { class: "muted", text: parts.join(" ") });
}

function footOf({ served, command, runs }) {
  const keys =
    "Keys: arrows move from token to token, [ and ] change the layer, Escape lets a token go.";
  const how =
    "To type other texts and to remove units or heads, serve the page from the model: headwise explore RUN --serve.";
  const made = command ? ["Made by ", make("code", { text: command })] : ["Made by headwise."];
  // A model that is of no run has no command that serves it.
  const paragraphs = served || !runs[0].task ? [[keys], made] : [[keys], [how], made];
  return make("footer", {}, ...paragraphs.map((content) => make("p", {}, ...content)));
}

// The first place that decides something: it shows what the page is for.
function firstPlace(places) {
  return places.find((place) => place.units > 0) ?? places[0];
}

function nearest(layers, wanted) {
  return layers.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
}

// An error of the page stands where it is seen.
function showError(error) {
  const shown = make("p", {
    class: "failed",
    role: "alert",
    text: `This page has failed: ${error?.message ?? error}`,
  });
  document.documentElement.dataset.error = String(error?.stack ?? error);
  document.getElementById("page").prepend(shown);
}

addEventListener("error", (event) => showError(event.error ?? event.message));
addEventListener("unhandledrejection", (event) => showError(event.reason));
new Page(JSON.parse(document.getElementById("payload").textContent));
