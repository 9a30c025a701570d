// The modules of the program as a tree, each in the colour of the worst that ran in it.

/** More levels than programs have are one level, since names come from files. */
const MOST_LEVELS = 24;

/** Name and path of each level of a path. */
function levelsOf(path) {
  const found = [...path.matchAll(/[^./]+/g)].map((match) => [match[0], path.slice(0, match.index + match[0].length)]);
  if (found.length <= MOST_LEVELS) return found;
  const kept = found.slice(0, MOST_LEVELS - 1);
  const last = kept[kept.length - 1][1];
  return [...kept, [path.slice(last.length + 1), path]];
}

class ModuleTree {
  constructor(page, list) {
    this.page = page;
    this.list = list;
    this.root = { name: "", path: "", worst: 0, count: 0, found: 0, children: new Map(), open: true };
    this.#build();
    list.addEventListener("keydown", (event) => this.#key(event));
    list.addEventListener("click", (event) => {
      const item = event.target.closest("[role=treeitem]");
      if (!item) return;
      this.#focus(item);
      if (event.target.closest(".twist")) this.toggle(item.node);
      else this.choose(item.node);
    });
    this.draw();
  }

  #build() {
    const { data } = this.page;
    const paths = data.texts.scope;
    const ends = new Map();
    const quiet = data.head.quiet;
    for (let row = 0; row < data.rows; row += 1) {
      const number = data.scope.values[row];
      let one = ends.get(number);
      if (!one) {
        one = { worst: 0, count: 0, found: 0 };
        ends.set(number, one);
      }
      one.worst = Math.max(one.worst, data.state.values[row]);
      one.count += data.covers.values[row];
      if (data.state.values[row] > quiet) one.found += 1;
    }
    for (const [number, one] of ends) {
      let node = this.root;
      this.#count(node, one);
      for (const [name, path] of levelsOf(paths[number])) {
        if (!node.children.has(path)) {
          node.children.set(path, { name, path, worst: 0, count: 0, found: 0, children: new Map(), open: false });
        }
        node = node.children.get(path);
        this.#count(node, one);
      }
    }
    // Opened down to where there is more than one thing to see.
    let node = this.root;
    while (node.children.size === 1) {
      [node] = node.children.values();
      node.open = true;
    }
  }

  #count(node, one) {
    node.worst = Math.max(node.worst, one.worst);
    node.count += one.count;
    node.found += one.found;
  }

  get isFlat() {
    return this.root.children.size === 0;
  }

  toggle(node) {
    node.open = !node.open;
    this.draw(node);
  }

  choose(node) {
    // What stands for itself in a pattern; a quotation mark would end the word of the filter.
    const pattern = node.path.replace(/[\\^$.|+(){}[\]*?]/g, "\\$&").replaceAll('"', ".");
    this.page.filter(node.path ? `scope="re:^${pattern}([./]|$)"` : "");
  }

  draw(focused) {
    const items = [];
    const add = (node, level) => {
      const state = this.page.data.head.states[node.worst];
      const many = node.children.size > 0;
      const item = el("li", {
        role: "treeitem", "aria-level": level, "aria-expanded": many ? String(node.open) : null, tabindex: "-1",
        title: `${shown(node.path) || "the whole program"}: worst is ${state.name}`,
      },
        el("span", { class: "twist", "aria-hidden": "true" }, many ? (node.open ? "▾" : "▸") : ""),
        el("span", { class: `chip state-${node.worst}`, "aria-hidden": "true" }, state.sign),
        el("span", { class: "level" }, node === this.root ? "all modules" : shown(node.name)),
        el("span", { class: "count" }, node.found ? `${whole(node.found)} of ${whole(node.count)}` : whole(node.count)));
      item.style.paddingInlineStart = `${(level - 1) * 14 + 4}px`;
      item.node = node;
      items.push(item);
      if (node.open) for (const child of node.children.values()) add(child, level + 1);
    };
    add(this.root, 1);
    this.list.replaceChildren(...items);
    const at = items.findIndex((item) => item.node === focused);
    items[Math.max(at, 0)].tabIndex = 0;
    if (at >= 0) items[at].focus();
  }

  #focus(item) {
    for (const one of this.list.children) one.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  }

  #key(event) {
    const item = event.target.closest("[role=treeitem]");
    if (!item) return;
    const { node } = item;
    const moves = {
      ArrowDown: () => item.nextElementSibling && this.#focus(item.nextElementSibling),
      ArrowUp: () => item.previousElementSibling && this.#focus(item.previousElementSibling),
      ArrowRight: () => {
        if (node.children.size && !node.open) this.toggle(node);
        else if (item.nextElementSibling) this.#focus(item.nextElementSibling);
      },
      ArrowLeft: () => {
        if (node.children.size && node.open) this.toggle(node);
        else {
          const level = Number(item.getAttribute("aria-level"));
          let above = item.previousElementSibling;
          while (above && Number(above.getAttribute("aria-level")) >= level) above = above.previousElementSibling;
          if (above) this.#focus(above);
        }
      },
      Home: () => this.#focus(this.list.firstElementChild),
      End: () => this.#focus(this.list.lastElementChild),
      Enter: () => this.choose(node),
      " ": () => this.choose(node),
    };
    if (moves[event.key]) {
      event.preventDefault();
      moves[event.key]();
    }
  }
}
