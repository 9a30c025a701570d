// All rows as a table: only those that can be seen are elements.

const ROW_HEIGHT = 24;
/** Browsers end at some ten million pixels: beyond that the height is scaled. */
const MOST_PIXELS = 8_000_000;

function tableColumns(data) {
  const { head } = data;
  const number = (title, column, hint) => ({
    title, hint, right: true, width: head.compared ? 76 : 66, text: (row) => short(column.at(row)), key: (row) => column.at(row),
  });
  const columns = [
    { title: "", hint: "what it is", width: 28, state: true, text: (row) => head.states[data.severity(row)].sign, key: (row) => data.severity(row) },
    { title: "step", width: 44, right: true, text: (row) => whole(data.step.at(row)), key: (row) => data.step.at(row) },
  ];
  const nonfinite = (row) => (data.a_nan.at(row) === null ? data.a_inf.at(row) : data.a_nan.at(row) + (data.a_inf.at(row) || 0));
  if (head.ranks > 1) columns.push({ title: "rank", width: 52, right: true, text: (row) => whole(data.rank.at(row)), key: (row) => data.rank.at(row) });
  columns.push(
    { title: "tensor", width: 0, name: true, text: (row) => shown(data.label(row)) + (data.covers.values[row] > 1 ? `  and ${whole(data.covers.values[row] - 1)} more like it` : ""), texts: "name" },
    { title: "operator", width: 112, text: (row) => shown(data.text("type", row)), texts: "type" },
    { title: "type", width: 60, text: (row) => shown(data.text("dtype", row)), texts: "dtype" },
    { title: "shape", width: 84, text: (row) => shown(data.text("shape", row)), key: (row) => data.nbytes.at(row) },
  );
  if (head.compared) {
    columns.push(
      number("rel. error", data.rel_l2, "‖actual − reference‖ / ‖reference‖, Euclidean norms"),
      number("max |d|", data.max_abs, "largest |actual − reference|"),
      number("1 − cos", data.cosine, "1 − cosine of the angle between both"),
      { title: "verdict", width: 100, text: (row) => head.states[data.severity(row)].name + (data.explained.values[row] ? " ↩" : ""), hint: "↩: an earlier record has this difference already", key: (row) => data.severity(row) },
    );
  } else {
    columns.push(
      number("rms", data.a_rms, "root of the mean of the squares"),
      number("max", data.a_max),
      number("min", data.a_min),
      number("NaN + Inf", { at: nonfinite }, "elements that are NaN or infinite"),
      { title: "found", width: 86, text: (row) => (data.severity(row) ? head.states[data.severity(row)].name : ""), key: (row) => data.severity(row) },
    );
  }
  return columns;
}

class RowGrid {
  constructor(page, grid) {
    this.page = page;
    this.columns = tableColumns(page.data);
    this.heading = el("div", { class: "line heading", role: "row" });
    this.body = el("div", { class: "body", role: "rowgroup" });
    this.space = el("div", { class: "space" });
    this.scroller = el("div", { class: "scroller", tabindex: "0", "aria-label": "rows: arrow keys select one" }, this.heading, this.space);
    this.space.append(this.body);
    grid.append(this.scroller);
    this.grid = grid;
    this.lines = [];
    this.sort = null;
    const template = this.columns.map((column) => (column.width ? `${column.width}px` : "minmax(200px, 1fr)")).join(" ");
    grid.style.setProperty("--columns", template);
    const least = this.columns.reduce((sum, column) => sum + (column.width || 200), 0);
    grid.style.setProperty("--least", `${least + 8 * this.columns.length}px`);
    this.columns.forEach((column, at) => {
      const button = el("button", { type: "button", title: column.hint || null, onclick: () => this.sortBy(at) }, column.title || "state");
      this.heading.append(el("div", { role: "columnheader", class: `cell${column.right ? " right" : ""}${column.state ? " sign" : ""}` }, button));
    });
    this.scroller.addEventListener("scroll", () => this.#later(), { passive: true });
    this.body.addEventListener("click", (event) => {
      const line = event.target.closest(".line");
      if (line) page.select(line.row);
    });
    this.scroller.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.scroller);
  }

  #later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  /** Sorts by a column; again: the other way round; a third time: as they ran. */
  sortBy(at) {
    if (!this.sort || this.sort.at !== at) this.sort = { at, down: !this.columns[at].texts };
    else if (this.sort.down === !this.columns[at].texts) this.sort.down = !this.sort.down;
    else this.sort = null;
    this.rowsChanged();
  }

  #sorted() {
    const { data, order } = this.page;
    if (!this.sort) return order;
    const column = this.columns[this.sort.at];
    const keys = new Float64Array(data.rows);
    if (column.texts) {
      const texts = data.texts[column.texts];
      const places = new Uint32Array(texts.length);
      [...texts.keys()].sort((one, other) => (texts[one] < texts[other] ? -1 : texts[one] > texts[other] ? 1 : 0)).forEach((number, place) => (places[number] = place));
      const numbers = data[column.texts].values;
      for (const row of order) keys[row] = places[numbers[row]];
    } else {
      for (const row of order) {
        const key = column.key(row);
        keys[row] = key === null ? -Infinity : Number.isNaN(key) ? Infinity : key;
      }
    }
    const down = this.sort.down;
    // Unknown ones stay at the end both ways.
    return order.slice().sort((one, other) => {
      const a = keys[one], b = keys[other];
      if (a === b) return one - other;
      if (a === -Infinity) return 1;
      if (b === -Infinity) return -1;
      return (a < b) === down ? 1 : -1;
    });
  }

  /** To be called when the filter or the order changed. */
  rowsChanged() {
    this.view = this.#sorted();
    this.places = null;
    this.heading.childNodes.forEach((cell, at) => {
      const way = this.sort && this.sort.at === at ? (this.sort.down ? "descending" : "ascending") : null;
      if (way) cell.setAttribute("aria-sort", way);
      else cell.removeAttribute("aria-sort");
    });
    this.grid.setAttribute("aria-rowcount", this.view.length + 1);
    this.scroller.scrollTop = 0;
    this.draw();
  }

  /** Of the names, which are set in a font of one width. */
  get #characterWidth() {
    if (!this.character) {
      const context = document.createElement("canvas").getContext("2d");
      const cell = getComputedStyle(this.lines[0].querySelector(".name"));
      context.font = `${cell.fontSize} ${cell.fontFamily}`;
      this.character = context.measureText("m".repeat(20)).width / 20 || 8;
    }
    return this.character;
  }

  get #scale() {
    const whole = this.view.length * ROW_HEIGHT;
    const seen = this.scroller.clientHeight;
    const high = Math.min(whole, MOST_PIXELS);
    return { high, factor: whole > high ? (whole - seen) / (high - seen) : 1 };
  }

  placeOf(row) {
    if (!this.places) {
      this.places = new Int32Array(this.page.data.rows).fill(-1);
      this.view.forEach((one, place) => (this.places[one] = place));
    }
    return row < 0 ? -1 : this.places[row];
  }

  draw() {
    const { data, selected } = this.page;
    const { high, factor } = this.#scale;
    this.space.style.height = `${high}px`;
    const top = this.scroller.scrollTop * factor;
    const first = Math.max(0, Math.floor(top / ROW_HEIGHT) - 2);
    const fits = Math.ceil(this.scroller.clientHeight / ROW_HEIGHT) + 4;
    const count = Math.max(0, Math.min(fits, this.view.length - first));
    while (this.lines.length < count) {
      const cells = this.columns.map((column) => el("div", { role: "cell", class: `cell${column.right ? " right" : ""}${column.name ? " name" : ""}` }));
      const line = el("div", { class: "line", role: "row" }, ...cells);
      line.cells = cells;
      this.lines.push(line);
      this.body.append(line);
    }
    const names = count ? this.lines[0].cells[this.columns.findIndex((column) => column.name)] : null;
    const most = names ? Math.floor(names.clientWidth / this.#characterWidth) : 0;
    this.lines.forEach((line, at) => {
      line.hidden = at >= count;
      if (line.hidden) return;
      const row = this.view[first + at];
      line.row = row;
      line.style.transform = `translateY(${this.scroller.scrollTop + (first + at) * ROW_HEIGHT - top}px)`;
      line.setAttribute("aria-rowindex", first + at + 2);
      line.setAttribute("aria-selected", String(row === selected));
      this.columns.forEach((column, number) => {
        const cell = line.cells[number];
        const text = column.text(row);
        cell.textContent = column.name ? fitting(text, most) : text;
        if (column.state) cell.className = `cell sign chip state-${data.state.values[row]}`;
        if (column.name) cell.title = text;
      });
    });
  }

  /** Scroll so far that the selected row is seen. */
  reveal() {
    const place = this.placeOf(this.page.selected);
    if (place < 0) return;
    const { factor } = this.#scale;
    const seen = this.scroller.clientHeight - this.heading.offsetHeight;
    const top = this.scroller.scrollTop * factor;
    const wanted = place * ROW_HEIGHT;
    if (wanted < top) this.scroller.scrollTop = wanted / factor;
    else if (wanted + ROW_HEIGHT > top + seen) this.scroller.scrollTop = (wanted + ROW_HEIGHT - seen) / factor;
  }

  #key(event) {
    const many = Math.max(1, Math.floor(this.scroller.clientHeight / ROW_HEIGHT) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: many, PageUp: -many, Home: -Infinity, End: Infinity };
    if (event.target !== this.scroller || !(event.key in moves) || !this.view.length) return;
    event.preventDefault();
    const place = this.placeOf(this.page.selected);
    const next = place < 0 && moves[event.key] === 1 ? 0 : place + moves[event.key];
    this.page.select(this.view[Math.min(Math.max(next, 0), this.view.length - 1)]);
  }
}
