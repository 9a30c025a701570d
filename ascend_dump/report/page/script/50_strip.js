// Everything that ran, as one strip: each pixel column shows the worst of its rows. And the same for every rank.

const STRIP_EDGE = { left: 52, right: 12 };

class Strip {
  constructor(page, canvas, readout) {
    this.page = page;
    this.canvas = canvas;
    this.readout = readout;
    this.worst = new Int32Array(0);
    canvas.addEventListener("click", (event) => {
      const row = this.nearest(event.offsetX);
      if (row >= 0) page.select(row);
    });
    canvas.addEventListener("mousemove", (event) => this.tell(this.nearest(event.offsetX)));
    canvas.addEventListener("mouseleave", () => this.tell(page.selected));
    canvas.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      let column = this.columnOf(page.selected);
      if (column < 0) column = way > 0 ? -1 : this.worst.length;
      for (let at = column + way; at >= 0 && at < this.worst.length; at += way) {
        if (this.worst[at] >= 0) {
          page.select(this.worst[at]);
          return;
        }
      }
    });
  }

  /** The worst row of the column at a place, -1 where there is none. */
  nearest(x) {
    const { left, right } = STRIP_EDGE;
    const share = (x - left) / Math.max(this.canvas.clientWidth - left - right, 1);
    return share < 0 || share >= 1 ? -1 : this.worst[Math.floor(share * this.worst.length)] ?? -1;
  }

  columnOf(row) {
    const place = this.page.placeOf(row);
    return place < 0 ? -1 : Math.floor((place * this.worst.length) / this.page.order.length);
  }

  tell(row) {
    const { data } = this.page;
    if (row < 0) {
      this.readout.textContent = "";
      return;
    }
    const step = data.step.at(row);
    const what = data.head.compared ? "relative error" : "root mean square";
    this.readout.textContent = `${step === null ? "" : `step ${step} · `}${shown(data.label(row))} · ${data.head.states[data.severity(row)].name} · ${what} ${short(data.height.at(row))}`;
  }

  draw() {
    const { data, order, selected } = this.page;
    const { context, width, height } = prepared(this.canvas);
    const { left, right } = STRIP_EDGE;
    const top = 8, ribbon = 10, bottom = 26;
    const wide = Math.max(1, Math.floor(width - left - right));
    const floor = height - bottom - ribbon - 4;
    const heights = data.height;
    // As many columns as there are pixels, or rows.
    const columns = Math.min(wide, order.length);
    const worst = new Int32Array(columns).fill(-1);
    const tallest = new Float64Array(columns).fill(-1);
    let low = Infinity, high = -Infinity;
    for (let place = 0; place < order.length; place += 1) {
      const row = order[place];
      const column = Math.floor((place * columns) / order.length);
      const known = heights.at(row);
      const value = known === null ? -1 : Number.isFinite(known) ? Math.abs(known) : Infinity;
      if (value > 0 && value < Infinity) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
      const other = worst[column];
      const severity = data.state.values[row];
      if (other < 0 || severity > data.state.values[other] || (severity === data.state.values[other] && value > tallest[column])) {
        worst[column] = row;
      }
      if (value > tallest[column]) tallest[column] = value;
    }
    this.worst = worst;
    const bottomLog = low < Infinity ? Math.max(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) - 12) : -6;
    const topLog = low < Infinity ? Math.max(Math.ceil(Math.log10(high)), bottomLog + 1) : 0;
    const y = (value) => floor - ((floor - top) * (Math.min(Math.max(Math.log10(value), bottomLog), topLog) - bottomLog)) / (topLog - bottomLog);
    context.textAlign = "right";
    for (const tick of decades(bottomLog, topLog, 6)) {
      context.fillStyle = colour("faint");
      context.fillRect(left, Math.round(y(10 ** tick)), wide, 1);
      context.fillStyle = colour("soft");
      context.fillText(power(tick), left - 6, y(10 ** tick));
    }
    const phases = { forward: colour("phase-forward"), backward: colour("phase-backward") };
    const other = colour("phase-other");
    const states = data.head.states.map((state, number) => colour(`state-${number}`));
    const one = wide / Math.max(columns, 1);
    for (let column = 0; column < columns; column += 1) {
      const row = worst[column];
      const value = tallest[column];
      const from = left + Math.round(column * one);
      const size = Math.max(1, left + Math.round((column + 1) * one) - from - (one > 4 ? 1 : 0));
      context.fillStyle = phases[data.text("phase", row)] || other;
      if (value > 0) {
        const place = value === Infinity ? top : y(value);
        context.fillRect(from, place, size, Math.max(floor - place, 1));
        if (value === Infinity) {
          context.fillStyle = states[data.state.values[row]];
          context.fillRect(from, top - 4, size, 8);
        }
      }
      context.fillStyle = states[data.state.values[row]];
      context.fillRect(from, floor + 4, size, ribbon);
    }
    context.fillStyle = colour("soft");
    context.textAlign = "center";
    this.#steps(context, left, wide, height);
    const column = this.columnOf(selected);
    if (column >= 0) {
      context.fillStyle = colour("ink");
      context.fillRect(left + (column + 0.5) * one - 1, top - 6, 2, floor + ribbon + 12 - top);
    }
    this.canvas.setAttribute("aria-valuetext", selected < 0 ? "no row selected" : shown(data.label(selected)));
    this.tell(selected);
  }

  /** Where a step begins, and where a rank does: those have the words where there are several. */
  #steps(context, left, wide, height) {
    const { data, order } = this.page;
    const several = data.head.ranks > 1;
    let last, lastRank, lastPlace = -100;
    for (let place = 0; place < order.length; place += 1) {
      const step = data.step.values[order[place]];
      const rank = data.rank.values[order[place]];
      if (step === last && rank === lastRank) continue;
      const words = !several ? `step ${step}` : rank === lastRank ? "" : `rank ${rank}`;
      const known = several ? rank >= 0 : step >= 0;
      last = step;
      lastRank = rank;
      const x = left + (place * wide) / order.length;
      context.fillStyle = colour("faint");
      context.fillRect(x, height - 22, 1, 6);
      if (words && known && x - lastPlace > 44 && x < left + wide - 20) {
        context.fillStyle = colour("soft");
        context.textAlign = "left";
        context.fillText(words, x, height - 9);
        lastPlace = x;
      }
    }
  }
}

/** One line for each rank, in the colour of the worst that ran there and then. */
class RankStrip {
  constructor(page, canvas) {
    this.page = page;
    this.canvas = canvas;
    this.cells = [];
    const ranks = new Set(page.data.rank.values);
    this.ranks = [...ranks].filter((rank) => rank >= 0).sort((one, other) => one - other);
    this.tall = this.ranks.length > 64 ? 4 : this.ranks.length > 24 ? 8 : 16;
    canvas.addEventListener("click", (event) => {
      const line = this.cells[Math.floor((event.offsetY - 4) / this.tall)];
      const row = line ? line[Math.floor(event.offsetX - STRIP_EDGE.left)] : -1;
      if (row >= 0) page.select(row);
    });
    canvas.addEventListener("keydown", (event) => {
      const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      const rank = page.selected < 0 ? null : page.data.rank.at(page.selected);
      const line = rank === null ? 0 : this.ranks.indexOf(rank) + way;
      if (this.cells[line]) page.select(this.worstOf(this.cells[line]));
    });
  }

  worstOf(line) {
    const { data } = this.page;
    return line.reduce((best, row) => (row >= 0 && (best < 0 || data.severity(row) > data.severity(best)) ? row : best), -1);
  }

  draw() {
    const { data, order, selected } = this.page;
    const high = this.ranks.length * this.tall + 8;
    this.canvas.style.height = `${high}px`;
    const { context, width } = prepared(this.canvas, high);
    const { left, right } = STRIP_EDGE;
    const wide = Math.max(1, Math.floor(width - left - right));
    const line = new Map(this.ranks.map((rank, at) => [rank, at]));
    const count = new Float64Array(this.ranks.length);
    for (const row of order) if (line.has(data.rank.values[row])) count[line.get(data.rank.values[row])] += 1;
    const place = new Float64Array(this.ranks.length);
    this.cells = this.ranks.map(() => new Array(wide).fill(-1));
    for (const row of order) {
      const at = line.get(data.rank.values[row]);
      if (at === undefined) continue;
      const first = Math.floor((place[at] * wide) / count[at]);
      place[at] += 1;
      const last = Math.max(first, Math.ceil((place[at] * wide) / count[at]) - 1);
      for (let column = first; column <= last; column += 1) {
        const other = this.cells[at][column];
        if (other < 0 || data.severity(row) > data.severity(other)) this.cells[at][column] = row;
      }
    }
    const states = data.head.states.map((state, number) => colour(`state-${number}`));
    context.textAlign = "right";
    this.ranks.forEach((rank, at) => {
      const y = 4 + at * this.tall;
      for (let column = 0; column < wide; column += 1) {
        const row = this.cells[at][column];
        if (row < 0) continue;
        context.fillStyle = states[data.state.values[row]];
        context.fillRect(left + column, y, 1, this.tall - 1);
      }
      if (this.tall >= 8 || at % 8 === 0) {
        context.fillStyle = colour(selected >= 0 && data.rank.values[selected] === rank ? "ink" : "soft");
        context.fillText(`rank ${rank}`, left - 6, y + this.tall / 2);
      }
    });
  }
}
