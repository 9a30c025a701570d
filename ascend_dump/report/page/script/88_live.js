// What only a served page can do: look into the tensor of any row, because the dump is at hand.

function liveView(view, row) {
  const { data } = view.page;
  const sides = data.head.compared ? ["both", "actual", "reference"] : ["both"];
  const side = el("select", { name: "side", "aria-label": "side" }, ...sides.map((name) => el("option", { value: name }, name)));
  const slice = el("input", { name: "slice", placeholder: "slice, such as 0, :, 10:20", "aria-label": "slice", spellcheck: "false" });
  const place = el("div", { class: "pictures" });
  const values = el("pre", { class: "values", "aria-label": "values" });
  const message = el("p", { class: "soft", role: "status" });
  let number = 0;

  async function read(what, take) {
    const query = new URLSearchParams({ side: side.value, slice: slice.value });
    const answer = await fetch(`${what}/${row}?${query}`, { cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.json()).error);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      rest += value || "";
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) if (line) take(JSON.parse(line));
      if (done) return;
    }
  }

  async function look() {
    const mine = (number += 1);
    message.textContent = "reading …";
    place.replaceChildren();
    values.textContent = "";
    const drawn = {};
    try {
      await read("tensor", (part) => {
        if (mine !== number) return;
        if (part.values_text !== undefined) values.textContent = shownLines(part.values_text);
        Object.assign(drawn, part);
        if (part.note !== undefined) message.textContent = shown(part.note);
        view.redraw = view.redraw.filter((draw) => !draw.live);
        const before = view.redraw.length;
        place.replaceChildren(...view.pictures(drawn));
        for (const draw of view.redraw.slice(before)) draw.live = true;
        view.draw();
      });
    } catch (error) {
      if (mine === number) message.textContent = shown(error.message);
    }
  }

  side.addEventListener("change", look);
  const form = el("form", { class: "controls", onsubmit: (event) => { event.preventDefault(); look(); } },
    el("strong", {}, "the tensor"), sides.length > 1 ? side : null, slice, el("button", { type: "submit" }, "Look"));
  return el("div", { class: "live" }, form, message, place, values);
}

function shownLines(text) {
  return text.split("\n").map(shown).join("\n");
}
