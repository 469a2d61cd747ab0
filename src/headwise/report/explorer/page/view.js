// What is being looked at. It stands in the address, so that a view can be linked.

const view = {
  site: null, // encoder_self, decoder_self, decoder_cross, or another name
  layer: null,
  head: null, // null: the mean of all heads
  units: [], // for each run the unit whose weight is the colour; null: the leading unit is
  run: null, // the only run that is shown; null: all
  token: null, // {stack, position}, the one that was picked
  opacity: 0.55, // of the colours over an image or a spectrogram
};

function readView() {
  const read = new URLSearchParams(location.hash.slice(1));
  const number = (text) => (/^\d+$/.test(text ?? "") ? Number(text) : null);
  view.site = read.get("site");
  view.layer = number(read.get("layer"));
  view.head = number(read.get("head"));
  view.units = (read.get("unit") ?? "").split(",").map(number);
  view.run = number(read.get("run"));
  const [stack, position] = (read.get("token") ?? "").split(":");
  view.token = number(position) === null ? null : { stack, position: number(position) };
}

function writeView() {
  const written = { site: view.site, layer: view.layer };
  if (view.head !== null) written.head = view.head;
  if (view.units.some((unit) => unit !== null)) {
    written.unit = Array.from(view.units, (unit) => unit ?? "").join(",");
  }
  if (view.run !== null) written.run = view.run;
  if (view.token) written.token = `${view.token.stack}:${view.token.position}`;
  const hash = Object.entries(written)
    .map(([name, value]) => `${name}=${value}`)
    .join("&");
  try {
    history.replaceState(null, "", `#${hash}`);
  } catch {
    // A notebook shows the page in a frame that has no address.
  }
}

// The unit whose weight colours a run; null: the leading unit does.
function unitOf(run, place) {
  const unit = view.units[run] ?? null;
  return unit !== null && unit < place.units ? unit : null;
}

// What is at the pointer, or else what was picked.
let pointed = null;

function tokenInView() {
  return pointed ?? view.token;
}

function sameToken(one, other) {
  return one?.stack === other?.stack && one?.position === other?.position;
}
