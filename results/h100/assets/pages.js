/* What pages do besides being read: trials that are sorted, filtered and drawn, tables that are sorted, configs that are
   copied, the way to the next problem. Data comes from the page's own JSON and is shown as text, never as markup. */
"use strict";
(() => {
const SHOWN = 20; // rows until somebody asks for all
const NEAR_PX = 28; // a pointer is at a point that is no farther away
const $ = (css, root = document) => root.querySelector(css);
const $$ = (css, root = document) => [...root.querySelectorAll(css)];

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}
const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const plain = (value) => String(+value.toPrecision(3));
const micro = (us) => (us >= 1000 ? us.toFixed(0) : us.toPrecision(4));

/* ---- copy --------------------------------------------------------------------------------------------------------- */

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // a page of a file, or a browser that does not let it
    const box = make("textarea", { style: "position:fixed;opacity:0" });
    box.value = text;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }
}

function copyButton(text, what = "copy") {
  const button = make("button", { class: "do copy", type: "button", title: text, "data-config": text }, what);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    button.textContent = (await copy(text)) ? "copied" : "not copied";
    setTimeout(() => { button.textContent = what; }, 1500);
  });
  return button;
}

for (const node of $$("[data-copy]")) node.after(copyButton(node.textContent, "copy config"));

/* ---- the way to other pages --------------------------------------------------------------------------------------- */

function way() {
  const here = document.documentElement.dataset.page;
  const all = window.problems || [];
  const at = all.findIndex((one) => one.page === here);
  const host = $(".way");
  if (!host || at < 0) return;
  const link = (css, arrow, one) =>
    one ? make("a", { class: css, href: `../../${one.page.split("/").map(encodeURIComponent).join("/")}/report.html` },
      css === "previous" ? `${arrow} ${one.name}` : `${one.name} ${arrow}`) : null;
  for (const node of [link("previous", "\u2190", all[at - 1]), link("next", "\u2192", all[at + 1])]) if (node) host.append(node);
}
way();

/* ---- tables ------------------------------------------------------------------------------------------------------- */

function compare(a, b, down) {
  const lacks = (value) => value === "" || value === null || Number.isNaN(value);
  if (lacks(a) || lacks(b)) return lacks(a) - lacks(b); // what is not known stands last in any order
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return down ? -order : order;
}

function label(table) {
  const heads = $$("thead th", table).map((head) => head.textContent);
  for (const row of $$("tbody tr", table)) [...row.cells].forEach((cell, at) => { cell.dataset.label = heads[at] || ""; });
}

/* Heads become buttons; also a choice, as narrow pages have no heads. `sort(column, down)` does it. */
function sortable(table, bar, sort) {
  const heads = $$("thead th", table).filter((head) => head.textContent);
  const choice = make("select", { "aria-label": "sort by" }, ...heads.map((head, at) => make("option", { value: at }, head.textContent)));
  const apply = (head, down) => {
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    choice.value = heads.indexOf(head);
    sort(head.cellIndex, down);
  };
  for (const head of heads) {
    const button = make("button", { type: "button" }, head.textContent);
    button.addEventListener("click", () => apply(head, head.getAttribute("aria-sort") === "ascending"));
    head.replaceChildren(button);
  }
  choice.addEventListener("change", () => apply(heads[choice.value], false));
  if (bar) bar.append(make("label", {}, "sort by", choice));
}

const known = (cell) => {
  const text = cell.dataset.sort ?? cell.textContent;
  return text !== "" && Number.isFinite(+text) ? +text : text;
};

/* A table that is in the page: of all problems. */
function index() {
  const table = $("#problems");
  if (!table) return;
  const rows = $$("tbody tr", table), body = $("tbody", table), bar = $("#controls");
  const count = make("span", { class: "small", id: "count", "aria-live": "polite" });
  const box = make("input", { type: "search", placeholder: "shape or words, e.g. 4352 128", "aria-label": "filter by shape or words" });
  const chosen = {};
  const update = () => {
    const words = box.value.toLowerCase().split(/[\s,]+/).flatMap((word) => (/^\d+(x\d+)+$/.test(word) ? word.split("x") : [word])).filter(Boolean);
    let left = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase(), sizes = row.dataset.sizes.toLowerCase().split(" ");
      const said = words.every((word) => (/^\d+$/.test(word) ? sizes.includes(word) : text.includes(word) || sizes.includes(word)));
      const fits = said && Object.entries(chosen).every(([name, want]) => !want || row.dataset[name] === want);
      row.hidden = !fits;
      left += fits;
    }
    count.textContent = `${left} of ${rows.length} problems`;
  };
  for (const name of ["operator", "kind"]) {
    const values = [...new Set(rows.map((row) => row.dataset[name]))].sort();
    const select = make("select", { "aria-label": name, id: `by-${name}` }, make("option", { value: "" }, "all"),
      ...values.map((value) => make("option", { value }, value)));
    select.addEventListener("change", () => { chosen[name] = select.value; update(); });
    bar.append(make("label", {}, name, select));
  }
  box.addEventListener("input", update);
  bar.prepend(box);
  sortable(table, bar, (column, down) => {
    rows.sort((a, b) => compare(known(a.cells[column]), known(b.cells[column]), down));
    body.append(...rows);
  });
  bar.append(count);
  label(table);
  update();
}
index();
for (const table of $$("table.rows")) label(table);

/* ---- trials ------------------------------------------------------------------------------------------------------- */

const source = $("#data");
if (!source) return;
const data = JSON.parse(source.textContent);
const state = { words: "", status: "", group: data.group, knobs: new Map(), hot: null, pinned: null, all: false, wide: false };
const listeners = []; // called with true when what is shown changed, else the mark alone
const trials = data.trials.map((one, place) => ({ ...one, place: place + 1 }));
const config = (one) => data.knobs.map((name, at) => (one.k[at] < 0 ? null : `${name}=${data.values[at][one.k[at]]}`)).filter(Boolean).join(" ");
const winner = trials.find((one) => one.rank === 1) || null;
const inGroup = (one) => one.us === null || one.group === state.group;
const changes = (one) => data.knobs.map((name, at) => at).filter((at) => !winner || one.k[at] !== winner.k[at]);
const value = (one, at) => (one.k[at] < 0 ? "\u2013" : data.values[at][one.k[at]]);
const timed = () => trials.filter((one) => one.us !== null && one.group === state.group);

function visible(one) {
  if (!inGroup(one) || (state.status && one.status !== state.status)) return false;
  for (const [at, values] of state.knobs) if (!values.has(one.k[at])) return false;
  if (!state.words) return true;
  const text = `#${one.number} ${one.status} ${one.origin} ${one.reason || ""} ${config(one)}`.toLowerCase();
  return state.words.split(/\s+/).every((word) => text.includes(word));
}

const changed = () => { for (const act of listeners) act(true); };
const mark = (one) => { if (state.hot !== one) { state.hot = one; for (const act of listeners) act(false); } };
const pin = (one) => { state.pinned = state.pinned === one ? null : one; for (const act of listeners) act(false); if (state.pinned) show(one); };

function words(one) {
  const head = `#${one.number}: ${one.us === null ? one.status : `${micro(one.us)} \u00b5s ${data.kind}`}`;
  if (one === winner) return `${head}, the winner`;
  const said = changes(one).map((at) => `${data.knobs[at]}=${value(one, at)}`).join(" ");
  return one.us === null ? `${head}: ${(one.reason || "").slice(0, 200)}` : `${head}; ${said}`;
}

const tip = make("div", { class: "tip", hidden: true, role: "status" });
document.body.append(tip);
function tell(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - box.width - 12))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
}

/* ---- the table of trials ------------------------------------------------------------------------------------------ */

const COLUMNS = [
  { name: "place", get: (one) => one.rank, css: "n" },
  { name: "trial", get: (one) => one.number, cell: (one) => `#${one.number}`, css: "n" },
  { name: "status", get: (one) => one.status },
  { name: `\u00b5s, ${data.timing}`, get: (one) => one.us, css: "n",
    cell: (one) => (one.us === null ? "" : [micro(one.us), ...(one.low ? [" ", make("small", {}, `${micro(one.low)}\u2013${micro(one.high)}`)] : [])]) },
  { name: "time / winner's", get: (one) => one.ratio, css: "n",
    cell: (one) => (one.ratio === null ? "" : [one.ratio.toFixed(3), ...(one.paired ? [" ", make("small", {}, "final")] : [])]) },
  { name: "origin", get: (one) => one.origin },
  { name: "registers", get: (one) => one.registers, css: "n" },
  { name: "SMEM, bytes", get: (one) => one.smem, css: "n" },
];
const DIFFERS = { name: "differs from the winner in", get: (one) => changes(one).length, cell: (one) => chips(one) };
const COPY = { name: "", get: () => "", cell: (one) => copyButton(config(one)), css: "bare" };
const columns = () => [...COLUMNS.filter((one) => trials.some((trial) => one.get(trial) !== null)),
  ...(state.wide ? data.knobs.map((name, at) => ({ name, get: (one) => (one.k[at] < 0 ? null : value(one, at)) })) : [DIFFERS]), COPY];

function chips(one) {
  if (one === winner) return "the winner";
  const items = changes(one).map((at) => make("code", {}, `${data.knobs[at]}=${value(one, at)}`));
  if (one.us === null && one.reason) items.push(make("small", {}, one.reason));
  return make("div", { class: "chips" }, ...items);
}

const host = $("#trials"), bar = $("#controls");
let sorting = { name: "place", down: false };
let rowOf = new Map();

function table() {
  const shape = columns();
  const by = shape.find((one) => one.name === sorting.name) || shape[0];
  const listed = trials.filter(visible).sort((a, b) => compare(by.get(a), by.get(b), sorting.down) || a.place - b.place);
  const some = state.all ? listed : listed.slice(0, SHOWN);
  if (state.pinned && listed.includes(state.pinned) && !some.includes(state.pinned)) some.push(state.pinned);
  rowOf = new Map();
  const rows = some.map((one) => {
    const row = make("tr", { "data-number": one.number, class: one === winner ? "top" : one.us === null ? "bad" : null },
      ...shape.map((column) => {
        const content = column.cell ? column.cell(one) : column.get(one) ?? "";
        return make("td", { class: column.css || null, "data-label": column.name }, ...[content].flat());
      }));
    row.addEventListener("mouseenter", () => mark(one));
    row.addEventListener("mouseleave", () => mark(null));
    row.addEventListener("click", () => pin(one));
    rowOf.set(one, row);
    return row;
  });
  const heads = shape.map((column) => make("th", { class: column.css || null }, column.name));
  const made = make("table", { class: "rows full" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
  const order = $("#order");
  order.replaceChildren();
  sortable(made, order, (at, down) => { sorting = { name: shape[at].name, down }; table(); });
  const at = shape.indexOf(by);
  $$("thead th", made)[at].setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
  $("select", order).value = at;
  host.replaceChildren(make("div", { class: "scroll" }, made));
  if (listed.length > SHOWN) {
    const more = make("button", { class: "do", type: "button", id: "more" }, state.all ? `the first ${SHOWN} only` : `all ${listed.length}`);
    more.addEventListener("click", () => { state.all = !state.all; table(); });
    host.append(more);
  }
  $("#count").textContent = `${listed.length} of ${trials.filter(inGroup).length} trials`;
  marks();
}

function marks() {
  for (const [one, row] of rowOf) {
    row.classList.toggle("hot", one === state.hot);
    row.classList.toggle("pinned", one === state.pinned);
  }
}

function show(one) {
  if (!rowOf.has(one)) table();
  const row = rowOf.get(one);
  if (row) row.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

function select(name, entries, act) {
  const node = make("select", { id: `by-${name}`, "aria-label": name }, ...entries.map(([key, text]) => make("option", { value: key }, text)));
  node.addEventListener("change", () => act(node.value));
  return make("label", {}, name, node);
}

function controls() {
  const box = make("input", { type: "search", placeholder: "words of a config, e.g. swap_ab=true", "aria-label": "filter trials" });
  box.addEventListener("input", () => { state.words = box.value.trim().toLowerCase(); changed(); });
  const statuses = [...new Set(trials.map((one) => one.status))];
  const wide = make("input", { type: "checkbox", id: "wide" });
  wide.addEventListener("change", () => { state.wide = wide.checked; table(); });
  bar.append(box, select("status", [["", "all"], ...statuses.map((one) => [one, one])], (one) => { state.status = one; changed(); }));
  if (data.groups.length > 1) {
    const choice = select("times of", data.groups.map((text, at) => [at, text]), (at) => { state.group = +at; changed(); });
    $("select", choice).value = state.group;
    bar.append(choice);
  }
  bar.append(make("span", { id: "order" }), make("label", {}, wide, "a column per knob"), make("span", { id: "chosen", class: "bar" }),
    make("span", { class: "small", id: "count", "aria-live": "polite" }));
}

function chosen() {
  const buttons = [...state.knobs].map(([at, values]) => {
    const text = [...values].map((one) => (one < 0 ? "\u2013" : data.values[at][one])).join(" or ");
    const button = make("button", { class: "do chosen", type: "button", title: "take this filter away" }, `${data.knobs[at]} = ${text} \u00d7`);
    button.addEventListener("click", () => { state.knobs.delete(at); changed(); });
    return button;
  });
  $("#chosen").replaceChildren(...buttons);
}

/* ---- plots -------------------------------------------------------------------------------------------------------- */

function ticks(low, high, log, most) {
  if (log && high / low >= 3) {
    for (const factors of [[1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
      const found = [];
      for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade++)
        for (const factor of factors) { const at = factor * 10 ** decade; if (at >= low && at <= high) found.push(at); }
      if (found.length <= most || factors.length === 1) return found;
    }
  }
  const rough = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough * (1 - 1e-9));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high * (1 + 1e-9); at++) found.push(at * step);
  return found;
}

/* A scatter with axes by uPlot; `paint(u, context)` draws what is no point. Points: {x, y, css, one}. */
function plot(node, about) {
  let chart = null, points = [];
  const rings = { hot: make("div", { class: "ring", hidden: true }), pinned: make("div", { class: "ring pin", hidden: true }) };
  const axis = (name, log, scale, most) => ({
    label: name, labelSize: 22, labelFont: "12.5px system-ui", font: "11.5px system-ui", stroke: colour("text"), scale,
    grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, border: { show: true, stroke: colour("axis"), width: 1 },
    size: scale === "y" ? 52 : 34, gap: 4, filter: (u, found) => found,
    splits: (u, at, low, high) => ticks(low, high, log, most(u)),
    values: (u, found) => found.map((one) => (about.whole === scale ? (Number.isInteger(one) ? one : "") : plain(one))),
  });
  const dots = (u) => {
    const context = u.ctx, ratio = devicePixelRatio || 1;
    context.save();
    context.beginPath();
    context.rect(u.bbox.left - 6, u.bbox.top - 6, u.bbox.width + 12, u.bbox.height + 12);
    context.clip();
    about.paint?.(u, context, ratio);
    for (const point of points) {
      context.globalAlpha = point.faint ? 0.55 : 1;
      context.fillStyle = colour(point.css);
      context.beginPath();
      context.arc(u.valToPos(point.x, "x", true), u.valToPos(point.y, "y", true), (point.size || 3) * ratio, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
    about.over?.(u, context, ratio);
    context.restore();
  };
  const place = () => {
    for (const [name, ring] of Object.entries(rings)) {
      const point = points.find((one) => one.one && one.one === state[name]);
      ring.hidden = !point;
      if (point) { ring.style.left = `${chart.valToPos(point.x, "x")}px`; ring.style.top = `${chart.valToPos(point.y, "y")}px`; }
    }
  };
  const nearest = (event) => {
    const box = chart.over.getBoundingClientRect();
    let best = null, least = NEAR_PX ** 2;
    for (const point of points) {
      const far = (chart.valToPos(point.x, "x") - event.clientX + box.left) ** 2 + (chart.valToPos(point.y, "y") - event.clientY + box.top) ** 2;
      if (far < least) { least = far; best = point; }
    }
    return best;
  };
  const build = () => {
    const width = Math.max(240, Math.floor(node.clientWidth)), height = width < 560 ? 320 : 390;
    const range = about.range();
    points = about.points(range);
    chart?.destroy();
    chart = new uPlot({
      width, height, padding: [14, 16, 0, 0], legend: { show: false }, cursor: { show: false, drag: { x: false, y: false } },
      scales: { x: { time: false, distr: about.xLog ? 3 : 1, range: () => range.x }, y: { distr: range.log ? 3 : 1, range: () => range.y } },
      axes: [axis(about.xName, about.xLog, "x", (u) => u.width / 90), axis(about.yName, range.log, "y", () => 7)],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: { draw: [dots] },
    }, [range.x, range.y], node);
    chart.over.append(...Object.values(rings));
    chart.over.addEventListener("mousemove", (event) => { const point = nearest(event); mark(point?.one || null); tell(event, point ? point.text || words(point.one) : ""); });
    chart.over.addEventListener("mouseleave", () => { mark(null); tell(null, ""); });
    chart.over.addEventListener("click", (event) => { const point = nearest(event); if (point?.one) pin(point.one); });
    node.plotted = { points, at: (one) => { // where a trial is drawn, for whoever looks from outside
      const point = points.find((other) => other.one?.number === one), box = chart.over.getBoundingClientRect();
      return point && { x: box.left + chart.valToPos(point.x, "x"), y: box.top + chart.valToPos(point.y, "y") };
    } };
    place();
  };
  listeners.push((anew) => (anew ? build() : place()));
  again(node, build);
}

/* Draw when the page is there, when its width changes, and when colours do. */
function again(node, build) {
  let width = 0;
  new ResizeObserver(() => { if (node.clientWidth !== width) { width = node.clientWidth; build(); } }).observe(node);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);
}

const CLIP = 8; // times beyond this multiple of the best are drawn at the upper edge

function times() {
  const found = timed().map((one) => one.us), low = Math.min(...found), high = Math.min(Math.max(...found), CLIP * low);
  if (high > 2 * low) { const pad = (high / low) ** 0.06; return { y: [low / pad, high * pad], log: true }; }
  const slack = 0.06 * (high - low) || 0.03 * low;
  return { y: [low - slack, high + slack], log: false };
}

/* Text that can be read over lines and dots. */
function write(context, text, x, y, ratio) {
  context.strokeStyle = colour("card");
  context.lineWidth = 4 * ratio;
  context.lineJoin = "round";
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
}

const COLOURS = { sampled: "mark", exhaustive: "mark", default: "mark2", neighbour: "mark3", published: "mark4" };

function convergence(node) {
  const step = (u, context, ratio) => {
    const line = (points, stroke, width, dash) => {
      context.strokeStyle = colour(stroke);
      context.lineWidth = width * ratio;
      context.setLineDash(dash.map((one) => one * ratio));
      context.beginPath();
      points.forEach(([x, y], at) => context[at ? "lineTo" : "moveTo"](x, y));
      context.stroke();
      context.setLineDash([]);
    };
    const { left, top, width, height } = u.bbox, right = left + width, bottom = top + height;
    for (const one of trials) if (one.us === null && visible(one)) { const x = u.valToPos(one.place, "x", true); line([[x, bottom - 9 * ratio], [x, bottom]], "faint", 1.5, []); }
    const byRule = timed().find((one) => one.origin === "default");
    if (byRule) {
      const y = u.valToPos(Math.min(byRule.us, u.scales.y.max), "y", true);
      line([[left, y], [right, y]], "axis", 1, [5, 4]);
      context.fillStyle = colour("soft");
      context.font = `${11.5 * ratio}px system-ui`;
      context.textAlign = "right";
      write(context, `default rule ${micro(byRule.us)} \u00b5s`, right - 4 * ratio, y - 5 * ratio, ratio);
    }
    let best = Infinity;
    const corners = [];
    for (const one of timed()) if (one.us < best) {
      const x = u.valToPos(one.place, "x", true);
      if (corners.length) corners.push([x, corners.at(-1)[1]]);
      best = one.us;
      corners.push([x, u.valToPos(Math.min(best, u.scales.y.max), "y", true)]);
    }
    if (corners.length) line([...corners, [right, corners.at(-1)[1]]], "best", 2, []);
  };
  plot(node, {
    xName: "trial, in the order in which they were finished", yName: `${data.kind} time, \u00b5s`, whole: "x", paint: step,
    range: () => ({ x: [0.5, Math.max(2, trials.length) + 0.5], ...times() }),
    points: (range) => timed().filter(visible).map((one) => ({
      x: one.place, y: Math.min(one.us, range.y[1]), one, css: one === winner ? "best" : COLOURS[one.origin] || "mark",
      size: one === winner ? 5 : one.origin === "sampled" ? 3 : 4, faint: one !== winner && one.origin === "sampled" })),
  });
}

function roofline(node) {
  const roof = data.roof, tera = (one) => roof.operations / one.us * 1e-6;
  const range = () => {
    const found = timed(), across = [...found.map((one) => one.flop), roof.dram];
    const up = [...found.map(tera), ...roof.lines.filter((one) => !one.perByte).map((one) => one.tera)];
    if (up.length === found.length) up.push(...roof.lines.filter((one) => one.css === "dram").map((one) => one.tera * roof.dram));
    const low = Math.max(Math.min(...up), Math.max(...found.map(tera)) / 32);
    return { x: [Math.min(...across) / 2.2, Math.max(...across) * 2.2], y: [low / 1.6, Math.max(...up) * 1.5], log: true };
  };
  const lines = (u, context, ratio) => {
    const { x, y } = u.scales, at = (value, scale) => u.valToPos(value, scale, true);
    const ceiling = Math.min(...roof.lines.filter((one) => !one.perByte).map((one) => one.tera), Infinity);
    const brief = (text) => (u.width < 560 ? text.replace(/ \([^)]*\)$/, "") : text);
    const flat = roof.lines.filter((one) => !one.perByte).sort((a, b) => b.tera - a.tera);
    context.font = `${11.5 * ratio}px system-ui`;
    for (const one of roof.lines) {
      const stroke = { smem: "mark", l2: "mark3", dram: "mark4" }[one.css] || "soft";
      context.strokeStyle = colour(stroke);
      context.fillStyle = colour("soft");
      context.lineWidth = 1.8 * ratio;
      context.setLineDash(one.css === "fast" ? [7 * ratio, 4 * ratio] : []);
      context.beginPath();
      if (one.perByte) {
        const start = Math.max(x.min, y.min / one.tera), end = Math.min(x.max, ceiling / one.tera, y.max / one.tera);
        if (start < end) {
          const from = [at(start, "x"), at(start * one.tera, "y")], to = [at(end, "x"), at(end * one.tera, "y")];
          context.moveTo(...from); context.lineTo(...to); context.stroke();
          context.save();
          context.translate(...from);
          context.rotate(Math.atan2(to[1] - from[1], to[0] - from[0]));
          context.textAlign = "left";
          write(context, brief(one.label), 18 * ratio, (one.css === "smem" ? 15 : -6) * ratio, ratio);
          context.restore();
        }
      } else {
        const level = at(one.tera, "y");
        context.moveTo(at(x.min, "x"), level); context.lineTo(at(x.max, "x"), level); context.stroke();
        context.textAlign = "right";
        write(context, brief(one.label), u.bbox.left + u.bbox.width - 4 * ratio, level + (one === flat[0] ? -6 : 15) * ratio, ratio);
      }
      context.setLineDash([]);
    }
  };
  const names = (u, context, ratio) => {
    context.font = `600 ${12 * ratio}px system-ui`;
    context.textAlign = "right";
    context.fillStyle = colour("text");
    let last = -Infinity;
    for (const one of data.marked.map((number) => trials.find((other) => other.number === number)).filter((one) => one && one.us !== null && one.group === state.group)
      .sort((a, b) => a.us - b.us)) {
      const [x, y] = [u.valToPos(one.flop, "x", true), u.valToPos(tera(one), "y", true)];
      last = Math.max(y, last + 14 * ratio);
      write(context, one === winner ? "winner" : one.role, x - 12 * ratio, last + 4 * ratio, ratio);
    }
    if (winner && roof.fills && winner.us !== null && winner.group === state.group) {
      const [x, y, size] = [u.valToPos(roof.dram, "x", true), u.valToPos(tera(winner), "y", true), 6 * ratio];
      context.fillStyle = colour("mark4");
      context.beginPath();
      context.moveTo(x, y - size); context.lineTo(x + size, y); context.lineTo(x, y + size); context.lineTo(x - size, y);
      context.fill();
    }
  };
  plot(node, {
    xName: "useful FLOP per byte moved", yName: `${data.kind} useful TFLOP/s`, xLog: true, range, paint: lines, over: names,
    points: () => timed().filter(visible).map((one) => ({
      x: one.flop, y: tera(one), one, faint: one !== winner, css: one === winner ? "best" : { pair: "mark", single: "mark2", third: "mark3", fourth: "mark4" }[one.colour],
      size: one === winner ? 5 : 3, text: `${words(one)}; ${plain(tera(one))} TFLOP/s` })).sort((a, b) => (a.one === winner) - (b.one === winner)),
  });
}

/* ---- parallel coordinates ----------------------------------------------------------------------------------------- */

function coordinates(node) {
  let paths = new Map();
  const varying = () => data.knobs.map((name, at) => at).filter((at) => new Set(timed().map((one) => one.k[at])).size > 1);
  const valuesOf = (at) => [...new Set(timed().map((one) => one.k[at]))].sort((a, b) => a - b);
  const toggle = (at, one) => {
    const values = state.knobs.get(at) || new Set();
    values.has(one) ? values.delete(one) : values.add(one);
    values.size ? state.knobs.set(at, values) : state.knobs.delete(at);
    changed();
  };
  const name = (at, one) => (one < 0 ? "\u2013" : data.values[at][one]);
  const cut = (text) => (text.length > 14 ? `${text.slice(0, 6)}\u2026${text.slice(-7)}` : text);
  const pick = (at, one, x, y, anchor) => {
    const text = name(at, one), short = cut(text), on = state.knobs.get(at)?.has(one);
    const made = draw("text", { x, y, class: `pick ${on ? "on" : ""}`, "text-anchor": anchor, tabindex: 0, role: "button", "aria-pressed": on ? "true" : "false",
      "data-knob": data.knobs[at], "data-value": text }, draw("title", {}, `${data.knobs[at]}=${text}: show these alone`), short);
    made.addEventListener("click", () => toggle(at, one));
    made.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(at, one); } });
    return made;
  };
  const build = () => {
    const axes = varying(), order = timed().sort((a, b) => b.us - a.us), width = Math.max(240, node.clientWidth);
    const down = width < 68 * (axes.length + 1); // too narrow for axes side by side: one below the other
    const range = times(), scale = range.log ? Math.log : (one) => one;
    const share = (us) => (scale(Math.min(us, range.y[1])) - scale(range.y[0])) / (scale(range.y[1]) - scale(range.y[0]));
    const inside = (where, half) => Math.max(half, Math.min(width - half, where));
    const lists = axes.map(valuesOf);
    // Values that have no room side by side stand in several lines below their axis.
    const levels = lists.map((values, index) => {
      const longest = 7 * Math.max(...values.map((one) => cut(name(axes[index], one)).length)) + 6;
      return down && values.length > 2 ? Math.min(values.length, Math.ceil(longest / ((width - 52) / (values.length - 1)))) : 1;
    });
    const places = levels.reduce((found, level) => [...found, found.at(-1) + 48 + 14 * level], [40]);
    const step = (width - 120) / Math.max(1, axes.length), height = down ? places.at(-1) + 24 : 430;
    const [low, high] = down ? [26, width - 26] : [height - 24, 52];
    const along = (values, one) => low + (values.length > 1 ? values.indexOf(one) / (values.length - 1) : 0.5) * (high - low);
    const across = (at) => (down ? places[at] : 56 + at * step);
    const jitter = (place) => ((place * 0.618) % 1 - 0.5) * 9; // lines of the same values stay apart
    const made = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "parallel coordinates of the knobs" });
    paths = new Map();
    const lines = draw("g"), labels = draw("g");
    order.forEach((one, rank) => {
      const corners = axes.map((at, index) => [across(index), along(lists[index], one.k[at]) + jitter(one.place)]);
      corners.push([across(axes.length), low + share(one.us) * (high - low)]);
      const text = corners.map(([a, b]) => (down ? `${b.toFixed(1)} ${a.toFixed(1)}` : `${a.toFixed(1)} ${b.toFixed(1)}`)).join("L");
      const good = rank >= order.length - Math.max(3, order.length / 10);
      const path = draw("path", { d: `M${text}`, class: `run ${good ? "good" : ""} ${one === winner ? "first" : ""}`, "data-number": one.number });
      path.addEventListener("mousemove", (event) => { mark(one); tell(event, words(one)); });
      path.addEventListener("mouseleave", () => { mark(null); tell(null, ""); });
      path.addEventListener("click", () => pin(one));
      paths.set(one, path);
      lines.append(path);
    });
    if (paths.has(winner)) lines.append(paths.get(winner));
    [...axes, -1].forEach((at, index) => {
      const place = across(index), title = at < 0 ? `${data.kind} \u00b5s` : data.knobs[at];
      const ends = down ? { x1: low, x2: high, y1: place, y2: place } : { x1: place, x2: place, y1: low, y2: high };
      labels.append(draw("line", { ...ends, class: "axis" }));
      labels.append(draw("text", down ? { x: 4, y: place - 22, class: "knob" } : { x: inside(place, 4 * title.length), y: index % 2 ? 32 : 14, class: "knob mid" }, title));
      if (at < 0) {
        for (const tick of ticks(...range.y, range.log, down ? 6 : 8)) {
          const where = low + share(tick) * (high - low);
          labels.append(draw("text", down ? { x: where, y: place + 16, class: "tick mid" } : { x: place + 7, y: where + 4, class: "tick" }, plain(tick)));
        }
        return;
      }
      lists[index].forEach((one, number) => {
        const where = along(lists[index], one), last = lists[index].length - 1;
        const half = 4 * cut(name(at, one)).length;
        const [x, anchor] = last && number === 0 ? [2, "start"] : last && number === last ? [width - 2, "end"] : [inside(where, half), "middle"];
        labels.append(down ? pick(at, one, x, place + 17 + 14 * (number % levels[index]), anchor) : pick(at, one, place + 7, where + 4, "start"));
      });
    });
    made.append(lines, labels);
    node.replaceChildren(made);
    cull();
    marked();
  };
  const cull = () => { for (const [one, path] of paths) path.classList.toggle("off", !visible(one)); };
  const marked = () => { for (const [one, path] of paths) path.classList.toggle("hot", one === state.hot || one === state.pinned); if (paths.has(state.hot)) paths.get(state.hot).parentNode.append(paths.get(state.hot)); };
  listeners.push((anew) => (anew ? build() : marked()));
  again(node, build);
}

controls();
listeners.push((anew) => { if (anew) { chosen(); table(); } else marks(); });
table();
const pictures = { "#convergence": convergence, "#coordinates": coordinates, "#roofline": roofline };
for (const [css, build] of Object.entries(pictures)) { const node = $(css); if (node && timed().length) build(node); }
})();
