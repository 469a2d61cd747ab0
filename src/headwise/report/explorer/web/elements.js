// Elements of the page. What comes from data goes in as text, never as markup.

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "text") made.textContent = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// Shares, weights and probabilities: two decimals, as bytes carry no more.
function twoDecimals(value) {
  return value.toFixed(2);
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// Puts an element over one of `count` rows or columns of what it lies on.
function putAt(element, start, size, index, count) {
  element.style[start] = `${(100 * index) / count}%`;
  element.style[size] = `${100 / count}%`;
}

// The row and the column at the pointer, of an element that is drawn as so many.
function cellAt(element, event, rows, columns) {
  const box = element.getBoundingClientRect();
  const inside = (share, size) => Math.min(Math.max(Math.floor(share * size), 0), size - 1);
  const row = inside((event.clientY - box.top) / box.height, rows);
  return { row, column: inside((event.clientX - box.left) / box.width, columns) };
}

// What is drawn anew must not take the focus away from who uses the keyboard: elements that may
// have it are known by a name.
function focused() {
  return document.activeElement?.dataset.focus ?? null;
}

function focusAgain(name) {
  if (name === null || focused() === name) return;
  const named = [...document.querySelectorAll("[data-focus]")];
  named.find((each) => each.dataset.focus === name)?.focus({ preventScroll: true });
}

// A part that is unfolded stays so when it is drawn anew.
const unfolded = new Set();

function foldable(name, summary, ...children) {
  const details = make(
    "details",
    { open: unfolded.has(name) },
    make("summary", { text: summary, "data-focus": name }),
    ...children,
  );
  details.addEventListener("toggle", () => {
    if (details.open) unfolded.add(name);
    else unfolded.delete(name);
  });
  return details;
}
