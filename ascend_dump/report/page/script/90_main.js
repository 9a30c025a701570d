// The page: what is selected and filtered, the address that says so, and the keys.

class Page {
  constructor(data) {
    this.data = data;
    this.order = Uint32Array.from({ length: data.rows }, (_, row) => row);
    this.selected = -1;
    this.filterText = "";
    this.parts = [];
  }

  start() {
    const { data } = this;
    const by = (id) => document.getElementById(id);
    for (const one of document.querySelectorAll("[data-script]")) one.hidden = false;
    this.box = by("filter");
    this.message = by("filter-message");
    this.grid = new RowGrid(this, by("grid"));
    this.strip = new Strip(this, by("strip"), by("strip-readout"));
    this.operator = new OperatorView(this, by("operator-view"));
    this.parts = [this.strip, this.grid, this.operator];
    this.tree = new ModuleTree(this, by("tree"));
    if (this.tree.isFlat) by("modules").querySelector(".note").hidden = false;
    if (data.head.ranks > 1) this.parts.push((this.ranks = new RankStrip(this, by("rank-strip"))));
    else by("ranks").hidden = true;
    if (data.head.steps > 1) this.parts.push((this.steps = new StepView(this, by("steps"))));
    else by("steps").hidden = true;
    this.#controls(by);
    this.grid.rowsChanged();
    this.#fromAddress();
    const redraw = () => this.draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    new ResizeObserver(redraw).observe(document.body);
    for (const [name, on] of [["beforeprint", true], ["afterprint", false]]) {
      window.addEventListener(name, () => {
        document.documentElement.classList.toggle("printing", on);
        redraw();
      });
    }
    window.addEventListener("hashchange", () => this.#fromAddress());
    document.addEventListener("keydown", (event) => this.#key(event));
    document.documentElement.dataset.ready = "yes";
  }

  #controls(by) {
    let waiting = 0;
    this.box.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.filter(this.box.value), 60);
    });
    by("next").addEventListener("click", () => this.step(1));
    by("previous").addEventListener("click", () => this.step(-1));
    by("clear").addEventListener("click", () => this.filter(""));
    for (const button of document.querySelectorAll("[data-row]")) {
      button.hidden = false;
      button.addEventListener("click", () => this.select(Number(button.dataset.row), { reveal: true }));
    }
    const legend = by("states");
    const present = new Map();
    for (let row = 0; row < this.data.rows; row += 1) {
      const state = this.data.state.values[row];
      present.set(state, (present.get(state) || 0) + this.data.covers.values[row]);
    }
    legend.append(...[...present.keys()].sort((one, other) => other - one).map((number) => {
      const state = this.data.head.states[number];
      return el("button", { type: "button", class: "state", title: `${state.meaning}: show these only`, onclick: () => this.filter(`state="${state.name}"`) },
        el("span", { class: `chip state-${number}` }, state.sign), `${state.name} ${whole(present.get(number))}`);
    }));
  }

  /** Where a row stands among those that the filter keeps, -1 where it is not. */
  placeOf(row) {
    if (row < 0) return -1;
    if (this.order.length === this.data.rows) return row;
    let low = 0, high = this.order.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.order[middle] === row) return middle;
      if (this.order[middle] < row) low = middle + 1;
      else high = middle - 1;
    }
    return -1;
  }

  /** Keep the rows that the text says. What it means wrongly is told beside the box, and nothing else changes. */
  filter(text) {
    if (this.box.value !== text) this.box.value = text;
    try {
      this.order = filterRows(this.data, text);
    } catch (error) {
      if (!(error instanceof FilterError)) throw error;
      this.box.setAttribute("aria-invalid", "true");
      this.message.textContent = shown(error.message);
      return;
    }
    this.box.removeAttribute("aria-invalid");
    this.filterText = text;
    this.message.textContent = text.trim() ? `${whole(this.order.length)} of ${counted(this.data.rows, "row")}` : counted(this.data.rows, "row");
    this.grid.rowsChanged();
    this.strip.draw();
    if (this.ranks) this.ranks.draw();
    this.#toAddress();
  }

  select(row, options = {}) {
    if (options.reveal && this.placeOf(row) < 0) this.filter("");
    this.selected = row;
    this.grid.draw();
    this.grid.reveal();
    this.strip.draw();
    if (this.ranks) this.ranks.draw();
    this.operator.show(row);
    if (options.reveal) document.getElementById("operator").scrollIntoView({ block: "nearest" });
    this.#toAddress();
  }

  /** The next or the previous finding in the order they ran. */
  step(way) {
    const { data, order } = this;
    let place = this.placeOf(this.selected);
    if (place < 0) place = way > 0 ? -1 : order.length;
    for (place += way; place >= 0 && place < order.length; place += way) {
      const row = order[place];
      if (data.severity(row) >= data.head.finding && !data.explained.values[row]) {
        this.select(row);
        return;
      }
    }
    this.message.textContent = way > 0 ? "no finding after this row" : "no finding before this row";
  }

  draw() {
    for (const part of this.parts) part.draw();
  }

  #toAddress() {
    const words = new URLSearchParams();
    if (this.selected >= 0) words.set("row", this.selected);
    if (this.filterText) words.set("filter", this.filterText);
    const text = words.toString();
    this.address = text ? `#${text}` : "";
    if (location.hash !== this.address) history.replaceState(null, "", this.address || "#");
  }

  #fromAddress() {
    if (this.address !== undefined && location.hash === this.address) return;
    const words = new URLSearchParams(location.hash.slice(1));
    const row = Number(words.get("row") ?? -1);
    const wanted = words.has("row") && Number.isInteger(row) && row >= 0 && row < this.data.rows ? row : this.data.head.first;
    this.filter(words.get("filter") || "");
    this.select(wanted);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const keys = {
      n: () => this.step(1),
      p: () => this.step(-1),
      "/": () => this.box.focus(),
      t: () => this.grid.scroller.focus(),
      o: () => document.getElementById("operator").scrollIntoView(),
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  }
}

(async () => {
  try {
    const started = performance.now();
    const page = new Page(await readData());
    page.start();
    // For those who measure.
    document.documentElement.dataset.milliseconds = String(Math.round(performance.now() - started));
    window.ascendDump = page;
  } catch (error) {
    const place = document.getElementById("broken");
    place.hidden = false;
    place.textContent = typeof DecompressionStream === "undefined"
      ? "This browser is too old for the parts that move: Chrome 80, Firefox 113 or Safari 16.4 and later show them."
      : `The data of this page cannot be shown: ${error.message}`;
    console.error(error);
  }
})();
