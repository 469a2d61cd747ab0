// What stands above and below the models: a title, the input and how the page is used.

function titleOfPage({ title, runs }) {
  return runs.length > 2 ? `${runs.length} models side by side` : title;
}

// What the models read, of a page whose reader cannot change it.
function inputOf({ item, text, note }) {
  const parts = note ? [note] : [];
  if (item) parts.push(`Item ${item.number} of ${item.of} of the ${item.part} part.`);
  if (text !== null) parts.push(text);
  return make("p", { class: "muted", text: parts.join(" ") });
}

function footOf({ served, command, runs }) {
  const keys =
    "Keys: arrows move from token to token, [ and ] change the layer, Escape lets a token go.";
  const how =
    "To type other texts and to remove units or heads, serve the page from the model: headwise explore RUN --serve.";
  return make(
    "footer",
    {},
    make("p", { text: keys }),
    // A model that is of no run has no such command.
    served || !runs[0].task ? null : make("p", { text: how }),
    command
      ? make("p", {}, "Made by ", make("code", { text: command }))
      : make("p", { text: "Made by headwise." }),
  );
}
