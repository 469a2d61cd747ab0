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
