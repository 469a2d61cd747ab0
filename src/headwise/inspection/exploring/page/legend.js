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
    const name = unitName(place, painting.unit);
    sentences.push(
      `The stronger the colour of a ${thing}, the larger the weight of ${name}, from ${range}.`,
    );
    if (thing === "token") sentences.push("The number is the weight.");
    if (place.chosen) sentences.push(`A ${thing} that has not chosen it has –.`);
  } else {
    const shown =
      thing === "token" ? "Colour and number of a token tell" : `The colour of a ${thing} tells`;
    sentences.push(`${shown} which ${words.unit} has the largest weight there.`);
    if (painting.units.includes(-1)) sentences.push("= stands where several have the same weight.");
    if (painting.colours.includes(null)) {
      sentences.push(
        `The eight ${words.units} that lead most often have a colour, the others are grey.`,
      );
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
