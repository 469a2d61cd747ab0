// A running model: what is typed is sent to it, and units are removed from it.

const PAUSE = 700; // milliseconds after the last key until a text is sent

// Promises the payload that answers a question, or an error in words.
async function ask(question) {
  let answer;
  try {
    // The address of the page has a token, without which nobody is answered.
    answer = await fetch(`api/explore${location.search}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question),
    });
  } catch {
    throw new Error("The model does not answer. Is headwise still running?");
  }
  const said = await answer.json().catch(() => ({}));
  if (said.runs) return said;
  throw new Error(said.error ?? `The model answers with the error ${answer.status}.`);
}

// The fields in which a reader gives the input. `send` is called with {text, target} or {item}.
class InputFields {
  constructor(payload, send) {
    this.send = send;
    this.sent = JSON.stringify(this.read(payload));
    this.text = payload.takes_text ? this.field("Text", payload.text, "Type a text") : null;
    this.target = payload.takes_target
      ? this.field("Target", payload.target, "Empty: the model writes it")
      : null;
    this.item = payload.item ? this.itemField(payload.item) : null;
    this.status = make("p", { class: "muted small status", role: "status" });
    const fields = [this.text, this.target, this.item].filter(Boolean);
    const labels = fields.map((field) => field.parentElement);
    this.element = make("form", { class: "input" }, ...labels, this.status);
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.now();
    });
  }

  field(label, value, placeholder) {
    const options = { rows: 1, placeholder, spellcheck: "false", "data-focus": label };
    const field = this.labelled(label, make("textarea", options));
    field.value = value ?? "";
    field.addEventListener("input", () => this.soon());
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      this.now();
    });
    return field;
  }

  itemField({ part, number, of }) {
    const options = { type: "number", min: 0, max: of - 1, value: number, "data-focus": "item" };
    const field = make("input", options);
    field.addEventListener("change", () => {
      clearTimeout(this.waiting);
      if (field.value !== "") this.send({ item: Number(field.value) });
    });
    return this.labelled(`Item of the ${part} part (0–${of - 1})`, field);
  }

  labelled(label, field) {
    make("label", { class: "field" }, make("span", { class: "label", text: label }), field);
    return field;
  }

  read({ text, target }) {
    return { text: text || null, target: target || null };
  }

  // Shows the input of an item, which can be changed from there.
  show(payload) {
    if (this.text) this.text.value = payload.text ?? "";
    if (this.target) this.target.value = payload.target ?? "";
    this.sent = JSON.stringify(this.read(payload));
  }

  soon() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.now(), PAUSE);
  }

  // Sends what is typed, unless it is what was sent last.
  now() {
    clearTimeout(this.waiting);
    const typed = this.read({ text: this.text?.value.trim(), target: this.target?.value.trim() });
    if (!typed.text || JSON.stringify(typed) === this.sent) return;
    this.sent = JSON.stringify(typed);
    if (this.item) this.item.value = ""; // the same item may be chosen again
    this.send(typed);
  }

  say(text, failed = false) {
    this.status.textContent = text;
    this.status.classList.toggle("failed", failed);
  }
}

// What is removed from the models: one change at most for each system.

class Removals {
  constructor(changed) {
    this.list = []; // {run, ablation}
    this.changed = changed;
  }

  // As the server is asked for them.
  asked() {
    return this.list.map(({ run, ablation }) => ({ run, ...idOf(ablation) }));
  }

  has(run, ablation) {
    const id = JSON.stringify(idOf(ablation));
    return this.list.some((each) => each.run === run && JSON.stringify(idOf(each.ablation)) === id);
  }

  // Removes, or puts back what is removed.
  toggle(run, ablation) {
    const isOther = (each) => each.run !== run || each.ablation.path !== ablation.path;
    const others = this.list.filter(isOther);
    this.set(this.has(run, ablation) ? others : [...others, { run, ablation }]);
  }

  set(list) {
    const before = this.list;
    this.list = list;
    this.changed(before);
  }

  // The list of what is removed, each with a button to put it back.
  shown(runs) {
    if (!this.list.length) return null;
    const items = this.list.map(({ run, ablation }) => {
      const place = runs[run].places.find((each) => each.path === ablation.path);
      const where = place ? placeName(runs[run], place) : ablation.path;
      const name = runs.length > 1 ? `${runs[run].name}: ` : "";
      const back = make("button", {
        type: "button",
        text: "put back",
        "aria-label": `put back: ${ablation.label}, ${where}`,
        onclick: () => this.toggle(run, ablation),
      });
      return make("li", {}, `${name}${ablation.label}, ${where} `, back);
    });
    const putBack = { type: "button", text: "put all back", onclick: () => this.set([]) };
    const all = make("button", putBack);
    return make(
      "div",
      { class: "removed" },
      make("strong", { text: "Changed" }),
      make("ul", {}, ...items),
      items.length > 1 ? all : null,
    );
  }

  // Buttons for the units of a place, and for all else that can be asked of it.
  of(run, place) {
    const possible = run.ablations.filter((each) => each.path === place.path);
    if (!possible.length) return null;
    const ofUnit = (unit) => {
      const ablation = possible.find((each) => each.unit === unit);
      if (!ablation) return null;
      const text = this.has(run.number, ablation) ? "put back" : "remove";
      return this.button(run.number, ablation, text, `remove ${unitName(place, unit)}`);
    };
    const others = possible.filter((each) => each.unit === null);
    return { ofUnit, others: this.others(others, run.number) };
  }

  button(run, ablation, text, name) {
    const { path, label, options } = ablation;
    const had = this.has(run, ablation);
    const title = had ? `put back: ${label}` : name;
    return make("button", {
      type: "button",
      class: "remove",
      text,
      title,
      "aria-label": title,
      "aria-pressed": String(had),
      "data-focus": `remove ${run} ${path} ${ablation.name} ${JSON.stringify(options)}`,
      onclick: () => this.toggle(run, ablation),
    });
  }

  // What is not the removal of a unit: a line for each kind, of which a reader chooses one.
  others(possible, run) {
    const kinds = new Map();
    for (const ablation of possible) {
      const values = Object.values(ablation.options);
      const kind = values.length === 1 ? ablation.label.replace(/ \S+$/, "") : "";
      const text = kind ? String(values[0]) : ablation.label;
      const button = this.button(run, ablation, text, ablation.label);
      kinds.set(kind, [...(kinds.get(kind) ?? []), button]);
    }
    if (!kinds.size) return null;
    const lines = [...kinds].map(([kind, buttons]) =>
      make(
        "div",
        { class: "removal", role: "group", "aria-label": kind || "as a whole" },
        make("span", { class: "small muted", text: kind ? `${kind}:` : "as a whole:" }),
        ...buttons,
      ),
    );
    const ofHeads = possible.some((each) => each.head !== null);
    const title = ofHeads ? "Remove a head, and other changes" : "Other changes";
    return foldable(`others ${run}`, title, ...lines);
  }
}

function idOf({ path, name, options }) {
  return { path, name, options };
}
