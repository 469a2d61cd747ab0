// All heads of an attention at once: small matrices, of which each is a button that chooses it.

// Args: the number of the run, its place, the attention, and `look`, which changes the view.
function allHeads(number, place, attention, look) {
  if (attention.heads.length < 2) return null;
  const heads = make("div", { class: "all-heads" });
  const title = `All ${attention.heads.length} heads`;
  const details = foldable(`heads ${number}`, title, heads);
  // Drawn when they are asked for.
  const draw = () => {
    if (!details.open || heads.children.length) return;
    heads.append(
      ...attention.heads.map((_, head) => headButton(number, place, attention, head, look)),
    );
  };
  details.addEventListener("toggle", draw);
  draw();
  return details;
}

function headButton(number, place, attention, head, look) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const name = capital(headName(place, attention, head));
  const chosen = view.head === head;
  numbersOf(attention.heads[head]).then((numbers) => drawMatrix(canvas, [numbers]));
  return make(
    "button",
    {
      type: "button",
      title: name,
      "aria-label": name,
      "aria-pressed": String(chosen),
      "data-focus": `head ${number} ${head}`,
      onclick: () => look({ head: chosen ? null : head }),
    },
    canvas,
    make("span", { text: String(head) }),
  );
}
