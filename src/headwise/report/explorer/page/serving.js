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
    const fields = [this.text, this.target, this.item]
      .filter(Boolean)
      .map((field) => field.parentElement);
    this.element = make("form", { class: "input" }, ...fields, this.status);
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.now();
    });
  }

  field(label, value, placeholder) {
    const field = make("textarea", {
      rows: 1,
      placeholder,
      spellcheck: "false",
      "data-focus": label,
    });
    field.value = value ?? "";
    field.addEventListener("input", () => this.soon());
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      this.now();
    });
    make("label", { class: "field" }, make("span", { class: "label", text: label }), field);
    return field;
  }

  itemField({ part, number, of }) {
    const field = make("input", {
      type: "number",
      min: 0,
      max: of - 1,
      value: number,
      "data-focus": "item",
    });
    field.addEventListener("change", () => this.send({ item: Number(field.value) }));
    make(
      "label",
      { class: "field" },
      make("span", { class: "label", text: `Item of the ${part} part (0–${of - 1})` }),
      field,
    );
    return field;
  }

  read({ text, target }) {
    return { text: text || null, target: target || null };
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
    this.send(typed);
  }

  say(text, failed = false) {
    this.status.textContent = text;
    this.status.classList.toggle("failed", failed);
  }
}
