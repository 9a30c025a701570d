// The language of the filter box: that of `Dump.select`.

const TEXT_FIELDS = {
  op: "name", op_type: "type", kernel: "kernel", io: "io", model: "model", phase: "phase", module: "module", scope: "scope", run: "run",
  state: "state", dtype: "dtype", source: "source", how: "how", reason: "reason",
};
const NUMBER_FIELDS = ["step", "rank", "index", "device"];

class FilterError extends Error {}

/** As Python's fnmatch reads a glob. */
function globTest(pattern) {
  let expression = "";
  for (let at = 0; at < pattern.length; at += 1) {
    const character = pattern[at];
    if (character === "*") expression += "[^]*";
    else if (character === "?") expression += "[^]";
    else if (character === "[") {
      let end = at + 1;
      if (pattern[end] === "!") end += 1;
      if (pattern[end] === "]") end += 1;
      while (end < pattern.length && pattern[end] !== "]") end += 1;
      if (end >= pattern.length) expression += "\\[";
      else {
        const negated = pattern[at + 1] === "!";
        const inside = pattern.slice(at + (negated ? 2 : 1), end).replace(/[\\\][^]/g, "\\$&");
        expression += `[${negated ? "^" : ""}${inside}]`;
        at = end;
      }
    } else expression += character.replace(/[\\^$.|+(){}\]\/]/g, "\\$&");
  }
  let compiled;
  try {
    compiled = new RegExp(`^(?:${expression})$`);
  } catch {
    throw new FilterError(`${pattern} is not a glob: write a range from its lower to its higher end, as in [0-9]`);
  }
  return (text) => compiled.test(text);
}

function textTest(pattern) {
  if (!pattern.startsWith("re:")) return globTest(pattern);
  let expression = pattern.slice(3);
  const anyCase = expression.startsWith("(?i)");
  if (anyCase) expression = expression.slice(4);
  try {
    const compiled = new RegExp(expression, anyCase ? "i" : "");
    return (text) => compiled.test(text);
  } catch (error) {
    throw new FilterError(`${pattern} is not a regular expression: ${error.message}`);
  }
}

/** The step language: `0|3-5|10`, or `all`. */
function numberTest(name, text) {
  if (text.trim().toLowerCase() === "all") return () => true;
  const ranges = text.split("|").map((part) => {
    const found = /^\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?$/.exec(part);
    if (!found) throw new FilterError(`${name}=${text}: write numbers and ranges joined by "|", such as 0|3-5|10`);
    const low = Number(found[1]);
    const high = found[2] === undefined ? low : Number(found[2]);
    if (low > high) throw new FilterError(`${name}=${text}: the range ${part.trim()} runs backwards`);
    return [low, high];
  });
  return (value) => value >= 0 && ranges.some(([low, high]) => low <= value && value <= high);
}

function words(text) {
  const found = [];
  for (const match of text.matchAll(/((?:[^\s"]|"[^"]*"?)+)/g)) found.push(match[1].replaceAll('"', ""));
  return found;
}

/** What a filter says: tests of texts and of numbers. Throws FilterError. */
function parseFilter(text) {
  const tests = [];
  for (const word of words(text)) {
    const found = /^([a-z_]+)=([^]*)$/.exec(word);
    if (found && Object.hasOwn(TEXT_FIELDS, found[1])) {
      const column = TEXT_FIELDS[found[1]];
      // Names of states hold no bar, so several may be given.
      const parts = column === "state" ? found[2].split("|") : [found[2]];
      const each = parts.map((part) => textTest(part));
      tests.push({ column, texts: (value) => each.some((test) => test(value)) });
    } else if (found && NUMBER_FIELDS.includes(found[1])) {
      tests.push({ column: found[1], numbers: numberTest(found[1], found[2]) });
    } else if (found) {
      const known = [...Object.keys(TEXT_FIELDS), ...NUMBER_FIELDS].join(", ");
      throw new FilterError(`no field ${found[1]}; fields: ${known}`);
    } else if (/[*?[]/.test(word)) {
      tests.push({ column: "name", texts: globTest(word) });
    } else {
      const wanted = word.toLowerCase();
      tests.push({ column: "name", texts: (value) => value.toLowerCase().includes(wanted) });
    }
  }
  return tests;
}

/** The rows that a filter keeps, in the order they ran. */
function filterRows(data, text) {
  const tests = parseFilter(text);
  const kept = new Uint8Array(data.rows).fill(1);
  for (const test of tests) {
    const values = data[test.column].values;
    if (test.texts) {
      const texts = test.column === "state" ? data.head.states.map((state) => state.name) : data.texts[test.column];
      const passes = Uint8Array.from(texts, (one) => (test.texts(one) ? 1 : 0));
      for (let row = 0; row < kept.length; row += 1) kept[row] &= passes[values[row]];
    } else {
      for (let row = 0; row < kept.length; row += 1) if (kept[row] && !test.numbers(values[row])) kept[row] = 0;
    }
  }
  let count = 0;
  for (let row = 0; row < kept.length; row += 1) count += kept[row];
  const rows = new Uint32Array(count);
  for (let row = 0, at = 0; row < kept.length; row += 1) if (kept[row]) rows[at++] = row;
  return rows;
}
