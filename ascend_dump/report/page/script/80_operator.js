// One operator: what it read and who made that, what it gave and who read that, and the numbers of one of its tensors.

class OperatorView {
  constructor(page, place) {
    this.page = page;
    this.place = place;
    this.redraw = [];
    const { data } = page;
    // Who reads what a row made, as lists behind one another.
    const start = new Uint32Array(data.rows + 2);
    for (let row = 0; row < data.rows; row += 1) start[data.producer.values[row] + 1] += 1;
    for (let at = 1; at < start.length; at += 1) start[at] += start[at - 1];
    const next = start.slice();
    this.readers = new Uint32Array(data.rows);
    for (let row = 0; row < data.rows; row += 1) this.readers[next[data.producer.values[row]]++] = row;
    this.start = start;
  }

  consumers(row) {
    return this.readers.subarray(this.start[row + 1], this.start[row + 2]);
  }

  /** The rows of the operator that a row belongs to. */
  members(row) {
    const { operator } = this.page.data;
    const number = operator.values[row];
    let first = row, last = row;
    while (first > 0 && operator.values[first - 1] === number) first -= 1;
    while (last + 1 < this.page.data.rows && operator.values[last + 1] === number) last += 1;
    return Array.from({ length: last - first + 1 }, (_, at) => first + at);
  }

  draw() {
    for (const draw of this.redraw) draw();
  }

  show(row) {
    this.redraw = [];
    if (row < 0) {
      this.place.replaceChildren(el("p", { class: "soft" }, "Select a row: in the strip, in the table, or with n for the next finding."));
      return;
    }
    const { data } = this.page;
    const state = data.head.states[data.severity(row)];
    const members = this.members(row);
    const parts = [
      el("header", {},
        el("h3", { class: "name" }, shown(data.text("name", row))),
        el("span", { class: `badge state-${data.severity(row)}` }, `${state.sign} ${state.name}`)),
      el("p", { class: "soft" }, [data.text("type", row), data.text("phase", row),
        data.step.at(row) === null ? "" : `step ${data.step.at(row)}`,
        data.rank.at(row) === null ? "" : `rank ${data.rank.at(row)}`].filter(Boolean).map(shown).join(" · ")),
      this.#facts(row),
      el("div", { class: "flow" },
        this.#list("Reads", members.filter((one) => data.text("io", one) === "input"), row, (one) => this.#maker(one)),
        this.#list("Makes", members.filter((one) => data.text("io", one) !== "input"), row, (one) => this.#takers(one))),
      el("h4", {}, shown(data.label(row)), el("span", { class: "soft" }, ` ${shown(data.text("dtype", row))}${shown(data.text("shape", row))} ${bytes(data.nbytes.at(row))}`)),
      el("div", { class: "numbers" }, this.#statistics(row), data.head.compared ? this.#measures(row) : null),
    ];
    this.place.replaceChildren(...parts, this.#tensor(row));
    if (data.head.live) this.place.append(liveView(this, row));
    this.draw();
  }

  #facts(row) {
    const { data } = this.page;
    const detail = data.head.details[row] || {};
    const excerpt = data.head.excerpts[data.text("source", row)];
    const facts = [
      ["module", data.text("module", row)], ["source", data.text("source", row)],
      ["reason", data.text("reason", row)], ["paired by", data.text("how", row)],
      ["reference", data.text("partner", row)],
      ["transformed", data.text("transformation", row) === "identity" ? "" : data.text("transformation", row)],
      ["called with", detail.arguments || ""],
    ].filter(([, text]) => text);
    const list = el("dl", { class: "facts" }, ...facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, shown(text))]));
    const lines = data.text("stack", row).split("\n").map((line) => shown(line)).join("\n");
    return el("div", {}, list,
      excerpt ? el("pre", { class: "source", "aria-label": "source" }, ...excerpt.lines.map((line, at) =>
        el("span", { class: excerpt.first + at === excerpt.line ? "here" : "" }, `${String(excerpt.first + at).padStart(5)}  ${shown(line)}\n`))) : null,
      lines ? el("pre", { class: "source", "aria-label": "call stack" }, lines) : null);
  }

  #link(row, text) {
    return el("button", { type: "button", class: "link name", onclick: () => this.page.select(row, { reveal: true }) }, text);
  }

  #list(title, rows, selected, beside) {
    const { data } = this.page;
    const items = rows.map((row) => el("li", { class: row === selected ? "selected" : "" },
      el("span", { class: `chip state-${data.severity(row)}`, title: data.head.states[data.severity(row)].name }, data.head.states[data.severity(row)].sign),
      this.#link(row, `${data.text("io", row)} ${data.index.at(row) ?? ""}`),
      el("span", { class: "soft" }, ` ${shown(data.text("dtype", row))}${shown(data.text("shape", row))} ${data.head.compared ? short(data.rel_l2.at(row)) : short(data.a_rms.at(row))}`),
      el("div", { class: "beside" }, ...beside(row))));
    return el("div", {}, el("h4", {}, title), items.length ? el("ul", {}, ...items) : el("p", { class: "soft" }, "nothing recorded"));
  }

  #maker(row) {
    const made = this.page.data.producer.values[row] - 1;
    return made < 0 ? ["from outside, or not known"] : ["← ", this.#link(made, shown(this.page.data.label(made)))];
  }

  #takers(row) {
    const takers = [...this.consumers(row)];
    const links = takers.slice(0, 8).flatMap((taker) => ["→ ", this.#link(taker, shown(this.page.data.text("name", taker))), " "]);
    if (takers.length > 8) links.push(`and ${takers.length - 8} more`);
    return links.length ? links : ["no recorded reader"];
  }

  #statistics(row) {
    const { data } = this.page;
    const names = [["max", "max"], ["min", "min"], ["mean", "mean"], ["rms", "root mean square"], ["zero", "share of zeros"], ["nan", "NaN"], ["inf", "Inf"]];
    const sides = data.head.compared ? [["a", "actual"], ["b", "reference"]] : [["a", "value"]];
    return el("table", {},
      el("thead", {}, el("tr", {}, el("th", {}, "statistics"), ...sides.map(([, title]) => el("th", { class: "right" }, title)))),
      el("tbody", {}, ...names.map(([name, title]) => el("tr", {}, el("td", {}, title),
        ...sides.map(([side]) => el("td", { class: "right" }, short(data.side(side, name, row))))))));
  }

  #measures(row) {
    const { data } = this.page;
    const names = [["rel_l2", "relative error (L2)"], ["max_abs", "largest |d|"], ["max_rel", "largest |d| / |reference|"],
      ["rmse", "root of mean d²"], ["cosine", "1 − cosine"], ["unequal", "share of unequal elements"]];
    const detail = data.head.details[row];
    const state = data.head.states[data.severity(row)].name;
    if (data.rel_l2.at(row) === null) return el("p", { class: "soft" }, state === "equal" ? "Both sides are bit for bit the same." : "The two sides were not measured against each other.");
    return el("table", {},
      el("thead", {}, el("tr", {}, el("th", {}, "d = actual − reference"), el("th", {}, ""))),
      el("tbody", {}, ...names.map(([name, title]) => el("tr", {}, el("td", {}, title), el("td", { class: "right" }, short(data[name].at(row))))),
        detail && detail.at ? el("tr", {}, el("td", {}, "largest |d| at"), el("td", { class: "right" }, `[${detail.at.join(", ")}]`)) : null));
  }

  /** Histograms and the map of a tensor that the page holds. */
  #tensor(row) {
    const { data } = this.page;
    const detail = data.head.details[row];
    if (!detail) {
      return el("p", { class: "soft" }, data.head.live ? "" : "Histograms and heat maps are kept for the findings and what differs most.");
    }
    return el("div", { class: "pictures" }, ...this.pictures(detail));
  }

  pictures(detail) {
    const found = [];
    if (detail.values) {
      found.push(this.#picture("values: counts in bins of equal width, square root scale", (canvas) => drawHistogram(canvas, detail.values),
        detail.values.reference && detail.values.actual ? [["bar-reference", "reference"], ["bar", "actual (outline)"]] : [],
        ["actual", "reference"].filter((side) => detail.values[side] && detail.values[side].nonfinite).map((side) => `${counted(detail.values[side].nonfinite, "value")} NaN or Inf in ${sideName(detail, side)}`).join(", ")));
    }
    if (detail.ulp) found.push(this.#picture("error: elements by |d| in units in the last place of the reference", (canvas) => drawUlps(canvas, detail.ulp), []));
    if (detail.heat) found.push(this.#heat(detail.heat));
    return found;
  }

  #picture(title, draw, legend, note) {
    const canvas = el("canvas", { class: "plot", role: "img", "aria-label": title });
    this.redraw.push(() => draw(canvas));
    return el("figure", {}, el("figcaption", {}, title), canvas,
      legend.length ? el("div", { class: "legend" }, ...legend.map(([name, text]) => el("span", {}, el("i", { class: `swatch ${name}` }), text))) : null,
      note ? el("div", { class: "legend" }, note) : null);
  }

  #heat(map) {
    const canvas = el("canvas", { class: "heat", role: "img", "aria-label": `${map.what}: heat map` });
    const scale = el("canvas", { class: "scale", "aria-hidden": "true" });
    this.redraw.push(() => {
      drawHeat(canvas, map);
      drawHeatScale(scale);
    });
    return el("figure", {}, el("figcaption", {}, `${map.what}: largest in each cell, ${whole(map.of[0])} rows × ${whole(map.of[1])} columns`),
      canvas,
      el("div", { class: "legend" }, ...(map.high ? [short(map.low), scale, short(map.high)] : []),
        el("span", {}, el("i", { class: "swatch heat-zero" }), "0"), el("span", {}, el("i", { class: "swatch heat-nonfinite" }), "NaN, Inf")));
  }
}

function sideName(detail, side) {
  return detail.values.reference ? side : "the tensor";
}
