// Statistics over steps: where does a module begin to grow?

const STEP_METRICS = {
  rms: { title: "root mean square", log: true },
  max: { title: "largest magnitude", log: true },
  zero: { title: "share of zeros", log: false },
  error: { title: "relative error", log: true },
};
const MOST_LINES = 6;
/** A step is pointed at where a line reaches so many times the median of all steps before it. */
const GROWTH = 10;

class StepView {
  constructor(page, section) {
    this.page = page;
    const { data } = page;
    this.steps = [...new Set(data.step.values)].filter((step) => step >= 0).sort((one, other) => one - other);
    this.canvas = section.querySelector("canvas");
    this.legend = section.querySelector(".legend");
    this.note = section.querySelector(".note");
    const metrics = Object.keys(STEP_METRICS).filter((name) => name !== "error" || data.head.compared);
    this.metric = section.querySelector("[name=metric]");
    this.level = section.querySelector("[name=level]");
    this.metric.append(...metrics.map((name) => el("option", { value: name }, STEP_METRICS[name].title)));
    if (data.head.compared) this.metric.value = "error";
    const deepest = Math.min(6, Math.max(1, ...data.texts.scope.map((path) => (path ? path.split(/[./]/).length : 0))));
    this.level.append(...Array.from({ length: deepest }, (_, at) => el("option", { value: at + 1 }, at === 0 ? "top modules" : `modules, ${at + 1} levels`)));
    for (const one of [this.metric, this.level]) one.addEventListener("change", () => this.draw());
  }

  #lines() {
    const { data } = this.page;
    const depth = Number(this.level.value);
    const groups = data.texts.scope.map((path) => (path ? path.split(/(?<=[./])/).slice(0, depth).join("").replace(/[./]$/, "") : ""));
    const place = new Map(this.steps.map((step, at) => [step, at]));
    const metric = this.metric.value;
    const found = new Map();
    for (let row = 0; row < data.rows; row += 1) {
      const at = place.get(data.step.values[row]);
      if (at === undefined || data.text("io", row) === "input") continue;
      const name = groups[data.scope.values[row]];
      if (!found.has(name)) found.set(name, { name, sum: new Float64Array(this.steps.length), weight: new Float64Array(this.steps.length) });
      const line = found.get(name);
      if (metric === "max") {
        const most = data.a_max.at(row), least = data.a_min.at(row);
        if (most === null && least === null) continue;
        line.sum[at] = Math.max(line.sum[at], Math.abs(most ?? 0), Math.abs(least ?? 0));
        line.weight[at] = 1;
        continue;
      }
      const value = metric === "error" ? this.#error(row) : data[`a_${metric}`].at(row);
      if (value === null) continue;
      if (metric === "error") {
        line.sum[at] = Math.max(line.sum[at], value);
        line.weight[at] = 1;
      } else {
        const weight = data.nbytes.at(row) || 1;
        line.sum[at] += (metric === "rms" ? value * value : value) * weight;
        line.weight[at] += weight;
      }
    }
    return [...found.values()].map((line) => ({
      name: line.name,
      values: Array.from(line.sum, (sum, at) => (!line.weight[at] ? null : metric === "rms" ? Math.sqrt(sum / line.weight[at]) : sum / line.weight[at])),
    }));
  }

  #error(row) {
    const { data } = this.page;
    return data.head.states[data.severity(row)].name === "equal" ? 0 : data.rel_l2.at(row);
  }

  /** Where a line is not finite first, or GROWTH times the median of what was before, and why; null where it never is. */
  #begins(values) {
    const before = [];
    for (let at = 0; at < values.length; at += 1) {
      if (values[at] === null) continue;
      if (!Number.isFinite(values[at])) return { at, why: "" };
      if (before.length) {
        const sorted = before.slice().sort((one, other) => one - other);
        const median = sorted[Math.floor(sorted.length / 2)];
        if (values[at] > GROWTH * median && values[at] > 0) {
          return { at, why: `${short(values[at])}, the median of the steps before is ${short(median)}` };
        }
      }
      before.push(values[at]);
    }
    return null;
  }

  draw() {
    const lines = this.#lines();
    for (const line of lines) line.begins = STEP_METRICS[this.metric.value].log ? this.#begins(line.values) : null;
    const last = (line) => Math.max(0, ...line.values.map((value) => (value === null ? 0 : Number.isFinite(value) ? value : Number.MAX_VALUE)));
    const begin = (line) => (line.begins ? line.begins.at : Number.MAX_VALUE);
    lines.sort((one, other) => begin(one) - begin(other) || (one.begins ? 0 : last(other) - last(one)));
    const drawn = lines.slice(0, MOST_LINES);
    const first = drawn.length && drawn[0].begins ? drawn[0] : null;
    const together = first ? lines.filter((line) => line.begins && line.begins.at === first.begins.at).length : 0;
    drawLines(this.canvas, this.steps, drawn, { log: STEP_METRICS[this.metric.value].log, mark: first ? first.begins.at : null });
    this.legend.replaceChildren(...drawn.map((line, at) => el("span", {}, el("i", { class: `swatch line-${at}` }), shown(line.name) || "outside modules")));
    const rest = lines.length - drawn.length;
    const said = first
      ? together > 1
        ? `${whole(together)} modules, ${shown(first.name) || "what runs outside modules"} among them, ${first.begins.why ? "begin to grow" : "are not finite"} at step ${this.steps[first.begins.at]} first.`
        : `${shown(first.name) || "what runs outside modules"} ${first.begins.why ? "begins to grow" : "is not finite"} at step ${this.steps[first.begins.at]}${first.begins.why ? `: ${first.begins.why}` : " first"}.`
      : STEP_METRICS[this.metric.value].log ? `No module reaches ${GROWTH} times the median of its steps before.` : "";
    this.note.textContent = `${said}${rest > 0 ? ` ${counted(rest, "more module")} not drawn.` : ""}`;
  }
}
