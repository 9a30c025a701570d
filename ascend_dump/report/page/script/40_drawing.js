// Drawing on canvases: what all of them share, the histogram, the heat map and lines over steps.

/** A canvas made as large as it is shown, with its context in CSS pixels. */
function prepared(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(canvas.clientWidth, 1);
  const tall = height || Math.max(canvas.clientHeight, 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(tall * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, tall);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  return { context, width, height: tall };
}

/** Powers of ten, at most so many, that lie in a range of logarithms. */
function decades(low, high, most) {
  const step = Math.max(1, Math.ceil((high - low) / most));
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

function power(exponent) {
  if (exponent >= -3 && exponent <= 3) return String(+(10 ** exponent).toPrecision(3));
  return `1e${String(exponent).replace("-", "−")}`;
}

/** Bars of one or two sides over the same bins. */
function drawHistogram(canvas, found) {
  const { context, width, height } = prepared(canvas);
  const left = 8, right = 8, top = 6, bottom = 20;
  const sides = ["reference", "actual"].filter((side) => found[side]);
  const most = Math.max(1, ...sides.flatMap((side) => found[side].counts));
  const tall = height - top - bottom;
  for (const side of sides) {
    const counts = found[side].counts;
    const wide = (width - left - right) / counts.length;
    context.fillStyle = colour(side === "actual" ? "bar" : "bar-reference");
    context.strokeStyle = colour("bar");
    counts.forEach((count, at) => {
      if (!count) return;
      // Square roots, so that the few of the tails are seen.
      const size = Math.max(1, Math.sqrt(count / most) * tall);
      const x = left + at * wide;
      if (side === "actual" && sides.length > 1) {
        context.strokeRect(x + 0.5, top + tall - size + 0.5, Math.max(wide - 1, 1), size);
      } else context.fillRect(x, top + tall - size, Math.max(wide - 0.5, 1), size);
    });
  }
  context.fillStyle = colour("faint");
  context.fillRect(left, top + tall, width - left - right, 1);
  context.fillStyle = colour("soft");
  context.textAlign = "left";
  context.fillText(short(found.low), left, height - 9);
  context.textAlign = "right";
  context.fillText(short(found.high), width - right, height - 9);
  if (found.low < 0 && found.high > 0) {
    const zero = left + ((width - left - right) * -found.low) / (found.high - found.low);
    context.fillStyle = colour("faint");
    context.fillRect(zero, top, 1, tall);
    if (zero > left + 50 && zero < width - right - 50) {
      context.fillStyle = colour("soft");
      context.textAlign = "center";
      context.fillText("0", zero, height - 9);
    }
  }
}

/** How many elements are how many units in the last place away from the reference. */
function drawUlps(canvas, counts) {
  const { context, width, height } = prepared(canvas);
  const left = 8, right = 8, top = 6, bottom = 20;
  const tall = height - top - bottom;
  const bins = Math.max(counts.length, 12);
  const wide = (width - left - right) / bins;
  const most = Math.max(1, ...counts);
  context.fillStyle = colour("bar");
  counts.forEach((count, at) => {
    if (!count) return;
    const size = Math.max(1, Math.sqrt(count / most) * tall);
    context.fillRect(left + at * wide + 0.5, top + tall - size, Math.max(wide - 1, 1), size);
  });
  context.fillStyle = colour("faint");
  context.fillRect(left, top + tall, width - left - right, 1);
  context.fillStyle = colour("soft");
  context.textAlign = "left";
  const every = Math.ceil(bins / Math.max(2, Math.floor(width / 56)));
  for (let at = 0; at < bins; at += every) {
    context.fillText(at === 0 ? "<1" : at < 14 ? whole(2 ** (at - 1)) : `2^${at - 1}`, left + at * wide, height - 9);
  }
}

/** From faint to strong in steps that eyes see alike, also without red and green (viridis). */
const HEAT = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137],
  [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]];

function heatColour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (HEAT.length - 1);
  const low = Math.floor(at), part = at - low, next = HEAT[Math.min(low + 1, HEAT.length - 1)];
  return HEAT[low].map((value, channel) => Math.round(value + (next[channel] - value) * part));
}

function drawHeat(canvas, map) {
  const cells = bytesOfBase64(map.cells);
  canvas.width = map.columns;
  canvas.height = map.rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(map.columns, map.rows);
  const zero = colour("heat-zero").split(",").map(Number);
  const wrong = colour("heat-nonfinite").split(",").map(Number);
  cells.forEach((cell, at) => {
    const found = cell === 0 ? zero : cell === 255 ? wrong : heatColour((cell - 1) / 253);
    image.data.set([...found, 255], 4 * at);
  });
  context.putImageData(image, 0, 0);
}

function drawHeatScale(canvas) {
  canvas.width = 128;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  const image = context.createImageData(128, 1);
  for (let at = 0; at < 128; at += 1) image.data.set([...heatColour(at / 127), 255], 4 * at);
  context.putImageData(image, 0, 0);
}

/** Lines over steps: `lines` of {name, values}, a value for each step or null; `mark` a step to point at. */
function drawLines(canvas, steps, lines, options) {
  const { context, width, height } = prepared(canvas);
  const left = 52, right = 12, top = 10, bottom = 22;
  const known = lines.flatMap((line) => line.values).filter((value) => value !== null && Number.isFinite(value));
  const positive = known.filter((value) => value > 0);
  context.fillStyle = colour("soft");
  if (!known.length) {
    context.fillText("no finite values to draw", left, height / 2);
    return;
  }
  const scale = (value) => (options.log ? Math.log10(value) : value);
  let low = options.log ? scale(Math.min(...positive)) : 0;
  let high = options.log ? scale(Math.max(...positive)) : Math.max(...known, 1e-12);
  if (options.log && (!positive.length || high - low < 0.2)) {
    low = (positive.length ? low : 0) - 0.5;
    high = low + 1;
  }
  const x = (at) => left + ((width - left - right) * at) / Math.max(steps.length - 1, 1);
  const y = (value) => top + (height - top - bottom) * (1 - (scale(value) - low) / (high - low));
  context.textAlign = "right";
  const powers = options.log ? decades(low, high, 5) : [];
  // Between two powers of ten there is one of them at most, which is no scale.
  const ticks = powers.length > 1 ? powers : [0, 0.25, 0.5, 0.75, 1].map((part) => low + part * (high - low));
  for (const tick of ticks) {
    const place = y(options.log ? 10 ** tick : tick);
    context.fillStyle = colour("faint");
    context.fillRect(left, place, width - left - right, 1);
    context.fillStyle = colour("soft");
    context.fillText(powers.length > 1 ? power(tick) : short(options.log ? 10 ** tick : tick), left - 6, place);
  }
  context.textAlign = "center";
  const every = Math.max(1, Math.ceil((steps.length * 48) / (width - left - right)));
  steps.forEach((step, at) => at % every === 0 && context.fillText(String(step), x(at), height - 9));
  if (options.mark !== undefined && options.mark !== null) {
    context.fillStyle = colour("accent");
    context.fillRect(x(options.mark) - 0.5, top, 1.5, height - top - bottom);
  }
  lines.forEach((line, number) => {
    context.strokeStyle = context.fillStyle = colour(`line-${number % 6}`);
    context.lineWidth = 1.75;
    context.setLineDash([[], [6, 3], [2, 2]][Math.floor(number / 6) % 3]);
    context.beginPath();
    let drawing = false;
    line.values.forEach((value, at) => {
      if (value === null || !Number.isFinite(value) || (options.log && value <= 0)) {
        drawing = false;
        return;
      }
      if (drawing) context.lineTo(x(at), y(value));
      else context.moveTo(x(at), y(value));
      drawing = true;
    });
    context.stroke();
    context.setLineDash([]);
    line.values.forEach((value, at) => {
      if (value === null || (options.log && value <= 0 && Number.isFinite(value))) return;
      if (Number.isFinite(value)) context.fillRect(x(at) - 1.5, y(value) - 1.5, 3, 3);
      else context.fillText("∞", x(at), top + 4);
    });
  });
}
