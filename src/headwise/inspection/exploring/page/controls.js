// The choices that hold for all runs: site, layer and head.

// Buttons of which one is pressed, or a list if they are many.
function choice(label, options, chosen, choose) {
  if (options.length > 14) {
    const list = make("select", { "aria-label": label, "data-focus": label });
    for (const { value, text } of options) {
      list.append(make("option", { value: String(value), text, selected: value === chosen }));
    }
    list.addEventListener("change", () => choose(options[list.selectedIndex].value));
    return make("div", { class: "control" }, make("span", { class: "label", text: label }), list);
  }
  const buttons = options.map(({ value, text }) =>
    make("button", {
      type: "button",
      text,
      "aria-pressed": String(value === chosen),
      "data-focus": `${label} ${value}`,
      onclick: () => choose(value),
    }),
  );
  return make(
    "div",
    { class: "control", role: "group", "aria-label": label },
    make("span", { class: "label", text: label }),
    make("span", { class: "buttons" }, ...buttons),
  );
}

function layerSlider(layers, look) {
  if (layers.length < 2) return null;
  const slider = make("input", {
    type: "range",
    min: 0,
    max: layers.length - 1,
    step: 1,
    value: Math.max(layers.indexOf(view.layer), 0),
    "aria-label": "Layer",
    "aria-valuetext": `layer ${view.layer}`,
    "data-focus": "layer",
    title: "[ and ] change the layer too",
  });
  slider.addEventListener("input", () => look({ layer: layers[slider.value] }));
  return make(
    "label",
    { class: "control" },
    make("span", { class: "label", text: "Layer" }),
    slider,
    make("output", { text: `${view.layer} of ${layers[0]}–${layers.at(-1)}` }),
  );
}

// Args: the runs, their sites, and `look`, which changes the view.
function controlsOf(runs, sites, look) {
  const { layers } = sites.get(view.site);
  const places = runs.map(placeInView).filter((place) => place !== null);
  const heads = Math.max(0, ...places.map((place) => attentionInView(place)?.heads.length ?? 0));
  const numbers = Array.from({ length: heads }, (_, head) => ({ value: head, text: String(head) }));
  const drawn = runs.some((run) => Object.values(run.stacks).some((stack) => stack.kind !== "text"));
  return [
    runs.length > 1
      ? choice("Show", [{ value: null, text: "all" }, ...runs.map((run, value) => ({ value, text: run.name }))], view.run, (run) => look({ run }))
      : null,
    sites.size > 1
      ? choice("Site", [...sites].map(([value, { title: text }]) => ({ value, text })), view.site, (site) => look({ site }))
      : null,
    layerSlider(layers, look),
    heads > 1
      ? choice("Attention of head", [{ value: null, text: "mean" }, ...numbers], view.head, (head) => look({ head }))
      : null,
    drawn ? opacitySlider(look) : null,
  ].filter((control) => control !== null);
}

function opacitySlider(look) {
  const slider = make("input", {
    type: "range", min: 0, max: 100, value: Math.round(100 * view.opacity),
    "aria-label": "Strength of the colours", "data-focus": "opacity",
  });
  slider.addEventListener("input", () => look({ opacity: slider.value / 100 }));
  return make("label", { class: "control" }, make("span", { class: "label", text: "Colours" }), slider);
}
