// Text and elements: whatever comes from a dump becomes text, never markup.

/** A new element. Attributes are set as given; children are elements or texts. */
function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** The text with characters that draw nothing, or turn the direction of others, spelled out. */
function shown(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (character) => {
    const code = character.codePointAt(0);
    if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
    return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\u{${code.toString(16)}}`;
  });
}

/** A number in at most four digits; null is unknown. */
function short(value) {
  if (value === null) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+Inf" : "−Inf";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (Number.isInteger(value) && size < 1e5) return String(value).replace("-", "−");
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(2).replace("e+", "e") : String(+value.toPrecision(4));
  return text.replaceAll("-", "−");
}

/** A natural number with its digits in groups. */
function whole(value) {
  return value === null ? "–" : String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** A name in so many characters: both ends are kept, the part of the model and that of the operator. */
function fitting(text, most) {
  if (text.length <= most || most < 8) return text;
  const head = Math.floor((most - 1) * 0.4);
  return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
}

function counted(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function bytes(count) {
  if (count === null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (count >= 1000 && at < units.length - 1) {
    count /= 1000;
    at += 1;
  }
  return `${at ? count.toFixed(1) : count} ${units[at]}`;
}

/** A colour of the style sheet, which knows whether the page is dark. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
