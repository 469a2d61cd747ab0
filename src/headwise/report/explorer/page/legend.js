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
  const button = (unit, text, name, look) =>
    make(
      "button",
      {
        type: "button",
        class: look,
        "aria-pressed": String(chosen === unit),
        "aria-label": name,
        title: name,
        "data-focus": `unit ${number} ${unit}`,
        onclick: () => choose(chosen === unit ? null : unit),
      },
      text,
    );
  const buttons = shown.map((unit) =>
    button(
      unit,
      String(unit),
      `Colour by the weight of ${unitName(place, unit)}`,
      `swatch ${colourClass(painting.colours, unit)}`,
    ),
  );
  return make(
    "div",
    { class: "legend", role: "group", "aria-label": "Colours" },
    button(null, `leading ${words.unit}`, `Colour by the leading ${words.unit}`, "choice"),
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
    if (shown.includes(unit)) continue;
    list.append(
      make("option", { value: unit, text: unitName(place, unit), selected: chosen === unit }),
    );
  }
  return list;
}
