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
