// What is removed from the models: one change at most for each system.

class Removals {
  constructor(changed) {
    this.list = []; // {run, ablation}
    this.changed = changed;
  }

  // As the server is asked for them.
  asked() {
    return this.list.map(({ run, ablation: { path, name, options } }) => ({
      run,
      path,
      name,
      options,
    }));
  }

  has(run, ablation) {
    return this.list.some((each) => each.run === run && sameAblation(each.ablation, ablation));
  }

  // Removes, or puts back what is removed.
  toggle(run, ablation) {
    const had = this.has(run, ablation);
    const others = this.list.filter(
      (each) => each.run !== run || each.ablation.path !== ablation.path,
    );
    this.set(had ? others : [...others, { run, ablation }]);
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
    const all = make("button", {
      type: "button",
      text: "put all back",
      onclick: () => this.set([]),
    });
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
    const number = run.number;
    const button = (ablation, text, name = text) =>
      make("button", {
        type: "button",
        class: "remove",
        text: text === "remove" && this.has(number, ablation) ? "put back" : text,
        title: this.has(number, ablation) ? `put back: ${ablation.label}` : name,
        "aria-label": this.has(number, ablation) ? `put back: ${ablation.label}` : name,
        "aria-pressed": String(this.has(number, ablation)),
        "data-focus": `remove ${number} ${ablation.path} ${ablation.name} ${JSON.stringify(ablation.options)}`,
        onclick: () => this.toggle(number, ablation),
      });
    const ofUnit = (unit) => {
      const ablation = possible.find((each) => each.unit === unit);
      return ablation ? button(ablation, "remove", `remove ${unitName(place, unit)}`) : null;
    };
    return {
      ofUnit,
      others: this.others(
        possible.filter((each) => each.unit === null),
        number,
        button,
      ),
    };
  }

  // What is not the removal of a unit: a line for each kind, of which a reader chooses one.
  others(possible, number, button) {
    const kinds = new Map();
    for (const ablation of possible) {
      const values = Object.values(ablation.options);
      const kind = values.length === 1 ? ablation.label.replace(/ \S+$/, "") : "";
      const text = kind ? String(values[0]) : ablation.label;
      kinds.set(kind, [...(kinds.get(kind) ?? []), button(ablation, text, ablation.label)]);
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
    return foldable(`others ${number}`, title, ...lines);
  }
}

function sameAblation(one, other) {
  const key = ({ path, name, options }) => JSON.stringify([path, name, options]);
  return key(one) === key(other);
}
