// What the model makes of the input: a text, classes, a number, a picture or a sound.

// How many holes of a text are shown with their candidates; those of others stand at the token.
const HOLES = 6;

// `before` is the output of the whole model where something is removed from it, else null.
function outputOf(run, before) {
  const { output } = run;
  const parts = output.made.map((made, index) => madeShown(made, before?.made[index] ?? null));
  const texts = output.made.filter((made) => made.by_model && made.text !== null);
  if (before && texts.length) parts.push(certaintyShown(output, before));
  if (output.classes.length) parts.push(classesShown(output.classes, before?.classes ?? null));
  if (output.number !== null) parts.push(numberShown(output.number, before?.number ?? null));
  if (output.label !== null) parts.push(labelled("true", make("p", { text: output.label })));
  parts.push(...holesShown(run));
  return make("div", { class: "output" }, ...parts);
}

// Candidates where nothing stands yet: at masks, and behind the last token.
function holesShown(run) {
  const written = run.output.made.some((made) => made.by_model && made.text !== null);
  const open = run.output.predictions.filter(({ stack, position }) => {
    const { special, tokens } = run.stacks[stack];
    if (position >= tokens.length) return !written;
    return stack === "encoder" && special.includes(position);
  });
  return open.slice(0, HOLES).map((prediction) => {
    const next = prediction.position >= run.stacks[prediction.stack].tokens.length;
    const caption = next ? "What would come next" : `In the gap at position ${prediction.position}`;
    return make("div", { class: "made" }, candidateTable(caption, prediction.best));
  });
}

function labelled(label, ...content) {
  return make("div", { class: "made" }, make("h3", { text: capital(label) }), ...content);
}

function madeShown(made, before) {
  const content = [];
  if (made.text !== null) content.push(textShown(made, before));
  if (made.picture !== null) {
    const changed = made.by_model && before?.picture && before.picture !== made.picture;
    const picture = (source, alt) => make("img", { class: "picture", src: source, alt });
    const row = make("div", { class: "pictures" }, picture(made.picture, made.label));
    if (changed) row.prepend(picture(before.picture, `${made.label}, whole model`), "→");
    content.push(row);
  }
  if (made.spectrogram !== null) {
    const label = `Spectrogram: ${made.label}`;
    const canvas = make("canvas", { class: "spectrogram", role: "img", "aria-label": label });
    drawSpectrogram(canvas, made.spectrogram);
    content.push(canvas);
  }
  if (made.sound !== null) {
    content.push(make("audio", { controls: true, src: made.sound, "aria-label": made.label }));
  }
  return labelled(made.label, ...content);
}

function textShown(made, before) {
  if (!made.by_model || !before || before.text === null) return make("p", { text: made.text });
  if (before.text === made.text) {
    return make("p", {}, make("span", { text: made.text }), make("small", { text: " unchanged" }));
  }
  return make("p", { class: "changed" }, ...differenceShown(before.text, made.text));
}

// How certain the model is of the tokens of a text, which may change though the text does not.
function certaintyShown(output, before) {
  const mean = ({ predictions }) => {
    const known = predictions.map((each) => each.probability).filter((each) => each !== null);
    return known.length ? known.reduce((sum, each) => sum + each, 0) / known.length : null;
  };
  const [was, is] = [mean(before), mean(output)];
  if (was === null || is === null) return "";
  const text = `${was.toFixed(3)} → ${is.toFixed(3)}`;
  return labelled("mean probability of its tokens", make("p", { text }));
}

function classesShown(classes, before) {
  const rows = classes.map(({ text, probability }) => {
    const was = before?.find((other) => other.text === text)?.probability;
    return shareRow([text], probability, moved(was, probability, 2));
  });
  return make("div", { class: "made" }, barTable("Probability of each class", rows));
}

function numberShown(number, before) {
  return labelled("output", make("p", { text: moved(before, number, 3) }));
}

// A number, and what it was if that was another.
function moved(before, number, decimals) {
  const [was, is] = [before?.toFixed(decimals), number.toFixed(decimals)];
  return was === undefined || was === is ? is : `${was} → ${is}`;
}

// What differs between two texts, word by word.

// Returns pieces {text, kind}; kind is "same", "gone" or "new".
function difference(before, after) {
  const one = before.split(/(?<=\s)/);
  const other = after.split(/(?<=\s)/);
  const alike = (i, j) => one[i].trim() === other[j].trim();
  // common[i][j]: how many words the rests from i and from j have in common, in this order
  const common = one.concat("").map(() => new Uint16Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      common[i][j] = alike(i, j)
        ? 1 + common[i + 1][j + 1]
        : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const pieces = [];
  const add = (text, kind) => {
    if (pieces.at(-1)?.kind === kind) pieces.at(-1).text += text;
    else pieces.push({ text, kind });
  };
  let [i, j] = [0, 0];
  while (i < one.length || j < other.length) {
    if (i < one.length && j < other.length && alike(i, j)) {
      add(other[j++], "same");
      i++;
    } else if (j === other.length || (i < one.length && common[i + 1][j] >= common[i][j + 1])) {
      add(one[i++], "gone");
    } else {
      add(other[j++], "new");
    }
  }
  return pieces;
}

// The text after, with the words that are gone struck out and the new ones marked.
function differenceShown(before, after) {
  const tags = { same: "span", gone: "del", new: "ins" };
  return difference(before, after).map(({ text, kind }) => make(tags[kind], { text }));
}
