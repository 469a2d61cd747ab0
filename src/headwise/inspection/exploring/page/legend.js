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
    button(unit, String(unit), `Colour by the weight of ${unitName(place, unit)}`,
      `swatch ${colourClass(painting.colours, unit)}`),
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
    list.append(make("option", { value: unit, text: unitName(place, unit), selected: chosen === unit }));
  }
  return list;
}

// One or two sentences for those who see the page for the first time.
function explanationOf(run, place, painting) {
  const words = run.words[place.system];
  if (place.decides === "nothing") {
    return "The heads of this system are joined without weights, so that nothing is coloured. Point at a token to see what a head reads from there.";
  }
  const all = { sequence: "the whole input", everything: "every input" }[place.decides];
  const once = all ? ` There is one decision for ${all}, so that all positions have the same.` : "";
  if (painting.unit !== null) {
    const name = unitName(place, painting.unit);
    const not = place.chosen ? " – stands where it is not chosen." : "";
    return `The stronger the colour, the larger the weight of ${name}. The number is the weight.${not}${once}`;
  }
  const choice = place.chosen
    ? `Each position chooses ${chosenAt(place, 0).length} of ${place.units} ${words.units}. `
    : "";
  const others = painting.colours.includes(null)
    ? ` The eight ${words.units} that lead most often have a colour, the others are grey.`
    : "";
  return `${choice}Colour and number are the ${words.unit} with the largest weight.${others}${once}`;
}
