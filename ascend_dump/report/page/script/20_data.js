// The data of the page: typed columns out of the packed bytes. columns.py says how they are laid out.

const NO_NUMBER = 0x7fa00000;

class Column {
  constructor(values, bits) {
    this.values = values;
    this.bits = bits;
  }

  /** The number of a row, null where it is not known. */
  at(row) {
    if (this.bits) return this.bits[row] === NO_NUMBER ? null : this.values[row];
    return this.values[row];
  }
}

/** Numbers from 0 on, -1 where one is not known. */
class NaturalColumn {
  constructor(values) {
    this.values = values;
  }

  at(row) {
    return this.values[row] < 0 ? null : this.values[row];
  }
}

function textsOf(bytesOfTexts) {
  const coded = JSON.parse(new TextDecoder().decode(bytesOfTexts));
  const texts = new Array(coded.length / 2);
  let before = "";
  for (let at = 0; at < texts.length; at += 1) {
    before = before.slice(0, coded[2 * at]) + coded[2 * at + 1];
    texts[at] = before;
  }
  return texts;
}

function joined(planes, rows, width) {
  const out = new Uint8Array(rows * width);
  for (let plane = 0; plane < width; plane += 1) {
    const start = plane * rows;
    for (let row = 0, to = plane; row < rows; row += 1, to += width) out[to] = planes[start + row];
  }
  return out.buffer;
}

function columnOf(kind, planes, rows) {
  if (kind === "u1") return new Column(planes);
  if (kind === "u2") return new Column(new Uint16Array(joined(planes, rows, 2)));
  if (kind === "u4") return new Column(new Uint32Array(joined(planes, rows, 4)));
  if (kind === "f8") return new NaturalColumn(new Float64Array(joined(planes, rows, 8)));
  const buffer = joined(planes, rows, 4);
  return new Column(new Float32Array(buffer), new Uint32Array(buffer));
}

function bytesOfBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const out = new Uint8Array(binary.length);
  for (let at = 0; at < out.length; at += 1) out[at] = binary.charCodeAt(at);
  return out;
}

/** All that the page shows: `head` with what is said once, a column for each number, and lists of texts. */
async function readData() {
  const packed = bytesOfBase64(document.getElementById("data").textContent);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const data = { head, rows: head.rows, texts: {} };
  let place = 4 + length;
  for (const one of head.columns) {
    const part = new Uint8Array(buffer, place, one.bytes);
    place += one.bytes;
    if (one.kind === "texts") data.texts[one.name.slice(0, -1)] = textsOf(part);
    else data[one.name] = columnOf(one.kind, part, head.rows);
  }
  data.text = (name, row) => data.texts[name][data[name].values[row]];
  data.label = (row) => {
    const io = data.text("io", row);
    const name = data.text("name", row);
    return io ? `${name}.${io}.${data.index.at(row) ?? 0}` : name;
  };
  data.severity = (row) => data.state.values[row];
  /** The number that the page draws over the order: the error, or the magnitude where nothing is compared. */
  data.height = head.compared ? data.rel_l2 : data.a_rms;
  /** Statistics of one side: those of the other where both are equal. */
  data.side = (side, name, row) => {
    const found = data[`${side}_${name}`].at(row);
    return found === null && side === "b" && head.states[data.state.values[row]].name === "equal"
      ? data[`a_${name}`].at(row)
      : found;
  };
  return data;
}
