"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const { names, columns, numbers } = data;
const INFINITE = 1e308;
const SIZE = 50;
const MARGIN = { l: 60, r: 10, t: 10, b: 45 };
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const COLOURS = { float64: "#7f7f7f", float32: "#1f87d6", float16: "#0f9d74", bfloat16: "#e0691a" };

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made && typeof value !== "string") made[name] = value; else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function shown(value) {
  if (value === null || value === undefined) return "";
  if (Math.abs(value) >= INFINITE) return value < 0 ? "-inf" : "inf";
  return String(Number(value.toPrecision(3)));
}

// ---- dark and light

const theme = document.getElementById("theme");
const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = name === "dark" ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Change to ${name === "dark" ? "light" : "dark"} colours`);
  document.querySelectorAll(".plot").forEach((plot) => Plotly.relayout(plot, colours()));
}
setTheme(dark() ? "dark" : "light");
theme.hidden = false;
theme.addEventListener("click", () => setTheme(dark() ? "light" : "dark"));

// ---- copying

document.querySelectorAll(".copy").forEach((button) => {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(code);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected: press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
});

// ---- sorting

function sortable(table, sort) {
  table.querySelectorAll("thead th").forEach((heading, column) => {
    const button = element("button", { type: "button" }, heading.textContent);
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(column, down ? -1 : 1);
    });
  });
}

const GRADES = ["A+", "A", "B", "F", "-", ""];
function key(cell) {
  if (cell.classList.contains("number")) return Number(cell.textContent);
  return cell.classList.contains("grade") ? GRADES.indexOf(cell.textContent.trim()) : cell.textContent.trim();
}
document.querySelectorAll("table.sortable").forEach((table) => sortable(table, (column, sign) => {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [key(row.cells[column]), row]);
  keyed.sort(([a], [b]) => sign * (a < b ? -1 : a > b ? 1 : 0));
  body.append(...keyed.map(([, row]) => row));
}));

// ---- all results, a page at a time

const FIELDS = [["outcome"], ["check"], ["implementation"], ["dtype"], ["regime"], ["layout"], ["shape"], ["error", 1], ["tolerance", 1], ["ratio", 1], ["message"]];
const LABELS = { ratio: "error / tolerance" };
let chosen = [], page = 0, order = null;
const place = document.getElementById("explorer");
const table = element("table", {}, element("thead", {}, element("tr", {}, ...FIELDS.map(([name, numeric]) => element("th", { scope: "col", class: numeric ? "number" : "" }, LABELS[name] || name)))), element("tbody"));
const back = element("button", { type: "button" }, "Previous"), on = element("button", { type: "button" }, "Next");
const where = element("span", { "aria-live": "polite" });
place.append(element("div", { class: "pages" }, back, on, where), element("div", { class: "wide", role: "region", "aria-label": "Results", tabindex: "0" }, table));
back.addEventListener("click", () => { page -= 1; draw(); });
on.addEventListener("click", () => { page += 1; draw(); });
const alphabetical = [...names.keys()].sort((a, b) => (names[a] < names[b] ? -1 : names[a] > names[b] ? 1 : 0));
const rank = new Int32Array(names.length);
alphabetical.forEach((name, i) => { rank[name] = i; });
sortable(table, (column, sign) => { order = [FIELDS[column], sign]; arrange(); page = 0; draw(); });

function arrange() {
  if (!order) return;
  const [[name, numeric], sign] = order;
  const of = numeric ? (i) => numbers[name][i] ?? -INFINITE : (i) => rank[columns[name][i]];
  chosen.sort((a, b) => sign * (of(a) - of(b)) || a - b);
}

function draw() {
  const rows = chosen.slice(page * SIZE, (page + 1) * SIZE).map((i) => element("tr", {}, ...FIELDS.map(([name, numeric]) => {
    if (numeric) return element("td", { class: "number" }, shown(numbers[name][i]));
    const said = names[columns[name][i]];
    if (name === "outcome") return element("td", {}, element("span", { class: `tag ${said}` }, said));
    return element("td", { class: name }, name === "implementation" ? element("code", {}, said) : said);
  })));
  table.tBodies[0].replaceChildren(...rows);
  const last = Math.max(0, Math.ceil(chosen.length / SIZE) - 1);
  back.disabled = page === 0;
  on.disabled = page >= last;
  where.textContent = chosen.length ? `${page * SIZE + 1} to ${Math.min(chosen.length, (page + 1) * SIZE)} of ${chosen.length}` : "no result";
}

// ---- filters

const form = document.getElementById("filters");
form.hidden = false;
const searched = new Map();
function matching(text) {
  if (!searched.has(text)) searched.set(text, names.map((name) => name.toLowerCase().includes(text)));
  return searched.get(text);
}

function filter() {
  const wanted = ["implementation", "dtype", "check", "outcome"].filter((name) => form.elements[name].value !== "").map((name) => [name, Number(form.elements[name].value)]);
  const text = form.elements.search.value.trim().toLowerCase(), fits = text ? matching(text) : null;
  const count = columns.check.length;
  chosen = [];
  for (let i = 0; i < count; i += 1) {
    if (wanted.every(([name, value]) => columns[name][i] === value) && (!fits || FIELDS.some(([name, numeric]) => !numeric && fits[columns[name][i]]))) chosen.push(i);
  }
  document.querySelectorAll("[data-implementation]").forEach((one) => {
    const misses = wanted.some(([name, value]) => name in one.dataset && !one.dataset[name].split(" ").includes(String(value)));
    one.toggleAttribute("data-hidden", misses || (fits !== null && !one.textContent.toLowerCase().includes(text)));
  });
  document.querySelectorAll(".cause").forEach((cause) => cause.toggleAttribute("data-hidden", !cause.querySelector(".finding:not([data-hidden])")));
  arrange();
  page = 0;
  draw();
  document.getElementById("matched").textContent = `${chosen.length} of ${count} results`;
}
let waiting = 0;
form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 120); });
form.addEventListener("reset", () => setTimeout(filter));
form.addEventListener("submit", (event) => event.preventDefault());
filter();

// ---- figures of an implementation

function colours() {
  const style = getComputedStyle(document.documentElement), of = (name) => style.getPropertyValue(name).trim();
  return { paper_bgcolor: of("--ground"), plot_bgcolor: of("--ground"), "font.color": of("--ink"), "xaxis.gridcolor": of("--line"), "yaxis.gridcolor": of("--line") };
}

function drawn(title, traces, layout, head, rows) {
  const figure = element("figure", {}, element("figcaption", {}, title));
  const listing = element("table", {}, element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))), element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", { class: typeof cell === "number" ? "number" : "" }, typeof cell === "number" ? shown(cell) : cell))))));
  const region = element("div", { class: "wide", role: "region", "aria-label": `${title}, as a table`, tabindex: "0" }, listing);
  if (typeof Plotly === "undefined" || !traces) {
    figure.append(region);
    return figure;
  }
  const plot = element("div", { class: "plot", role: "group", "aria-label": `${title}; the figures follow as a table` });
  figure.append(plot, element("details", {}, element("summary", {}, "Figures"), region));
  const axis = { zeroline: false };
  requestAnimationFrame(() => {
    Plotly.newPlot(plot, traces, { margin: MARGIN, legend: { orientation: "h", y: 1.15 }, ...layout, xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, type: "log", exponentformat: "power", ...layout.yaxis } }, { responsive: true, displaylogo: false, scrollZoom: false });
    Plotly.relayout(plot, colours());
  });
  return figure;
}

const finite = (value) => value !== null && value > 0 && value < INFINITE;
const marked = (dtype, symbol = "circle") => ({ color: COLOURS[dtype] || "#a05ac8", size: 6, symbol });

function byName(title, ylabel, of, nouns) {
  const traces = Object.entries(of).map(([dtype, values]) => ({ name: dtype, mode: "markers", x: Object.keys(values), y: Object.values(values).map((v) => (finite(v) ? v : null)), marker: marked(dtype) }));
  const rows = Object.entries(of).flatMap(([dtype, values]) => Object.entries(values).map(([name, value]) => [dtype, name, value]));
  return drawn(title, traces, { margin: { ...MARGIN, b: 110 }, yaxis: { title: { text: ylabel } } }, ["dtype", ...nouns], rows);
}

function curves(title, of, xlabel, ylabel, points) {
  const traces = [], rows = [];
  for (const [dtype, series] of Object.entries(of)) {
    Object.entries(series).sort(([a], [b]) => (a === points) - (b === points)).forEach(([name, curve], k) => {
      const kept = curve.filter(([x, y]) => finite(x) && finite(y));
      const style = name === points ? { mode: "markers", marker: marked(dtype) } : { mode: "lines", line: { color: COLOURS[dtype] || "#a05ac8", dash: DASHES[k % DASHES.length], width: 1 } };
      traces.push({ name: `${dtype} ${name}`, x: kept.map(([x]) => x), y: kept.map(([, y]) => y), ...style });
      rows.push(...curve.map(([x, y]) => [dtype, name, x, y]));
    });
  }
  return drawn(title, traces, { xaxis: { type: "log", exponentformat: "power", title: { text: xlabel } }, yaxis: { title: { text: ylabel } } }, ["dtype", "curve", xlabel, ylabel], rows);
}

function figures(of) {
  const made = [];
  if (of.ulp) made.push(byName("Error by regime", "worst error (ulp)", of.ulp, ["regime", "ulp"]));
  if (of["condition-sweep"]) made.push(curves("Error over mean / std, and its bound", of["condition-sweep"], "mean / std", "largest error of the row", "measured"));
  if (of["outlier-sensitivity"]) made.push(curves("Spread of the others beside one outlier", of["outlier-sensitivity"], "size of the outlier", "spread of the others", "measured"));
  if (of["epsilon-placement"]) made.push(curves("Where eps stands", of["epsilon-placement"], "spread of the row", "spread / denominator", "measured"));
  if (of.gradients) made.push(byName("Gradient errors over their bounds", "error / tolerance", of.gradients, ["check", "error / tolerance"]));
  if (of.determinism) made.push(drawn("Determinism", null, {}, ["check", "dtype", "outcomes"], Object.entries(of.determinism).map(([name, counts]) => [...name.split(" "), Object.entries(counts).map(([outcome, count]) => `${count} ${outcome}`).join(", ")])));
  return made.length ? made : [element("p", {}, "No figures.")];
}

document.querySelectorAll("details.implementation").forEach((details) => details.addEventListener("toggle", () => {
  const inside = details.querySelector(".figures");
  if (details.open && !inside.childElementCount) inside.append(...figures(data.figures[details.dataset.implementation] || {}));
}));
