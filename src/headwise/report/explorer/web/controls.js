// The choices that hold for all runs: site, layer and head. Their elements stay while the view
// changes, or else a slider could not be drawn along.

// More buttons than these become a list.
const MOST_BUTTONS = 14;

// Buttons of which one is pressed, or a list if they are many.
class Choice {
  constructor(label, choose) {
    this.label = label;
    this.choose = choose;
    this.element = make("div", { class: "control", role: "group", "aria-label": label });
  }

  // Args: options {value, text}, and the chosen value.
  update(options, chosen) {
    this.element.hidden = options.length < 2;
    const names = JSON.stringify(options);
    if (this.names !== names) this.build(options);
    this.names = names;
    if (this.list) this.list.selectedIndex = options.findIndex(({ value }) => value === chosen);
    else {
      this.buttons.forEach((button, index) =>
        button.setAttribute("aria-pressed", String(options[index].value === chosen)),
      );
    }
  }

  build(options) {
    const label = make("span", { class: "label", text: this.label });
    if (options.length > MOST_BUTTONS) {
      this.list = make("select", { "aria-label": this.label });
      this.list.append(...options.map(({ text }) => make("option", { text })));
      this.list.addEventListener("change", () =>
        this.choose(options[this.list.selectedIndex].value),
      );
      this.element.replaceChildren(label, this.list);
      return;
    }
    this.list = null;
    this.buttons = options.map(({ value, text }) =>
      make("button", { type: "button", text, onclick: () => this.choose(value) }),
    );
    this.element.replaceChildren(label, make("span", { class: "buttons" }, ...this.buttons));
  }
}

class Slider {
  constructor(label, slide, title = null) {
    this.slider = make("input", { type: "range", min: 0, "aria-label": label, title });
    this.slider.addEventListener("input", () => slide(Number(this.slider.value)));
    this.said = make("output");
    const name = make("span", { class: "label", text: label });
    this.element = make("label", { class: "control" }, name, this.slider, this.said);
  }

  update(most, value, text, spoken) {
    this.element.hidden = most < 1;
    this.slider.max = most;
    this.slider.value = value;
    this.slider.setAttribute("aria-valuetext", spoken);
    this.said.textContent = text;
  }
}

class Controls {
  // `look` changes the view.
  constructor(look) {
    this.run = new Choice("Show", (run) => look({ run }));
    this.site = new Choice("Site", (site) => look({ site }));
    this.layer = new Slider(
      "Layer",
      (index) => look({ layer: this.layers[index] }),
      "[ and ] change the layer too",
    );
    this.head = new Choice("Attention of head", (head) => look({ head }));
    this.opacity = new Slider("Colours", (value) => look({ opacity: value / 100 }));
    const each = [this.run, this.site, this.layer, this.head, this.opacity];
    this.element = make("div", { class: "controls" }, ...each.map(({ element }) => element));
  }

  // Offers what these runs have at the site in view.
  update(runs, sites) {
    const names = runs.map((run, value) => ({ value, text: run.name }));
    this.run.update(names.length > 1 ? [{ value: null, text: "all" }, ...names] : [], view.run);
    const titles = [...sites].map(([value, { title }]) => ({ value, text: title }));
    this.site.update(titles, view.site);
    this.layers = sites.get(view.site).layers;
    const text = `${view.layer} of ${this.layers[0]}–${this.layers.at(-1)}`;
    const index = this.layers.indexOf(view.layer);
    this.layer.update(this.layers.length - 1, index, text, `layer ${view.layer}`);
    const places = runs.map(placeInView).filter((place) => place !== null);
    const most = Math.max(0, ...places.map((place) => attentionInView(place)?.heads.length ?? 0));
    const heads = Array.from({ length: most }, (_, value) => ({ value, text: String(value) }));
    this.head.update(most > 1 ? [{ value: null, text: "mean" }, ...heads] : [], view.head);
    // Colours lie over an image or a sound, more or less of which is to be seen.
    const drawn = runs.some((run) => Object.values(run.stacks).some(({ kind }) => kind !== "text"));
    const share = Math.round(100 * view.opacity);
    this.opacity.update(drawn ? 100 : 0, share, "", `${share} percent`);
  }
}
