"use strict";
// The content: gzip of JSON in base64. `document.py` describes its fields.
const find = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};
const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const WORK_COLUMNS = ["Condition", "Query", "Customer", "Days", "Reason", "Next command"];
const LABELS = 104, TOP = 18, MAX_WORK = 50;
let report, dark;
const state = { query: "", customer: "", since: "", until: "", hidden: new Set() };

async function readContent() {
  const packed = Uint8Array.from(atob(find("content").textContent), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Days are numbers counted from the first day of the report.
const dayText = (day) => new Date(Date.parse(report.first_day) + day * 864e5).toISOString().slice(0, 10);
const dayNumber = (text) => Math.round((Date.parse(text) - Date.parse(report.first_day)) / 864e5);
const conditionAt = (query, customer, day) => report.conditions[query.cells[customer].charCodeAt(day) - 97];
const noteAt = (query, customer, day) => query.notes[`${customer},${day}`];
const color = (condition) => (dark ? condition.dark : condition.light);
const swatch = (condition) => make("span", { class: "swatch", style: `background:${color(condition)}` });
const badge = (condition) => make("span", { class: "condition" }, swatch(condition), condition.label);

function selected() {
  const customers = [...report.customers.keys()].filter((each) => report.customers[each].id.includes(state.customer));
  const first = Math.max(0, state.since ? dayNumber(state.since) : 0);
  const last = Math.min(report.days - 1, state.until ? dayNumber(state.until) : report.days - 1);
  const queries = report.queries.filter((query) => !state.query || query.name === state.query);
  return { customers, first, last, queries };
}

// ---- filters, kept in the address -------------------------------------------------------------------------------
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of ["query", "customer", "since", "until"]) state[name] = given.get(name) ?? "";
  state.hidden = new Set((given.get("without") ?? "").split(",").filter(Boolean));
  for (const name of ["query", "customer", "since", "until"]) find("filters").elements[name].value = state[name];
}

function writeAddress() {
  const kept = new URLSearchParams();
  for (const name of ["query", "customer", "since", "until"]) if (state[name]) kept.set(name, state[name]);
  if (state.hidden.size) kept.set("without", [...state.hidden].join(","));
  history.replaceState(null, "", kept.size ? `#${kept}` : location.pathname + location.search);
}

function showFilters() {
  const form = find("filters");
  for (const query of report.queries) form.elements.query.append(make("option", { value: query.name }, query.name));
  for (const customer of report.customers) find("customers").append(make("option", { value: customer.id }));
  for (const name of ["since", "until"]) {
    form.elements[name].min = report.first_day;
    form.elements[name].max = dayText(report.days - 1);
  }
  form.addEventListener("input", (event) => {
    state[event.target.name] = event.target.value.trim().replaceAll("-", event.target.type === "date" ? "-" : "");
    show();
  });
  form.addEventListener("reset", () => {
    Object.assign(state, { query: "", customer: "", since: "", until: "", hidden: new Set() });
    setTimeout(show);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
}

function showLegend(counts) {
  const legend = find("legend");
  legend.querySelectorAll("button").forEach((button) => button.remove());
  for (const condition of report.conditions) {
    const button = make("button", { type: "button", title: condition.meaning, "data-name": condition.name,
      "aria-pressed": String(!state.hidden.has(condition.name)) },
      swatch(condition), `${condition.label} ${(counts.get(condition.name) ?? 0).toLocaleString("en")}`);
    button.addEventListener("click", () => {
      if (!state.hidden.delete(condition.name)) state.hidden.add(condition.name);
      show();
      legend.querySelector(`[data-name="${condition.name}"]`).focus();
    });
    legend.append(button);
  }
}

// ---- work list --------------------------------------------------------------------------------------------------
function workRanges({ customers, first, last, queries }) {
  const chosen = new Set(customers), ranges = [];
  for (const query of queries) {
    for (const customer of chosen) {
      let open = null;
      for (let day = first; day <= last; day += 1) {
        const condition = conditionAt(query, customer, day);
        const note = condition.needs_you && !state.hidden.has(condition.name) ? noteAt(query, customer, day) : null;
        const reason = note ? report.texts[note[1]] : "", command = note && note[4];
        if (!condition.needs_you || state.hidden.has(condition.name)) open = null;
        else if (open && open.condition === condition && open.reason === reason && open.note[4] === command) open.last = day;
        else ranges.push((open = { query, customer, condition, reason, note, first: day, last: day }));
      }
    }
  }
  return ranges.sort((a, b) => a.condition.rank - b.condition.rank || b.last - a.last);
}

function showWork(view) {
  const ranges = workRanges(view), list = find("work-list");
  const days = ranges.reduce((sum, range) => sum + range.last - range.first + 1, 0);
  find("work-title").textContent = days ? `${plural(days, "day")} ${days === 1 ? "needs" : "need"} you` : "No day needs you";
  list.replaceChildren();
  if (!ranges.length) return;
  const body = make("tbody");
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...WORK_COLUMNS.map((name) => make("th", { scope: "col" }, name)))), body);
  const add = (from, to) => ranges.slice(from, to).forEach((range) => body.append(workRow(range)));
  add(0, MAX_WORK);
  list.append(table);
  if (ranges.length > MAX_WORK) {
    const more = make("button", { type: "button", id: "more" }, `Show ${ranges.length - MAX_WORK} more`);
    more.addEventListener("click", () => { add(MAX_WORK); more.remove(); });
    list.append(more);
  }
}

function workRow(range) {
  const { query, customer, condition, first, last } = range;
  const days = make("button", { type: "button" }, first === last ? dayText(first) : `${dayText(first)} to ${dayText(last)}`);
  days.addEventListener("click", () => openDetails(query, customer, last, days));
  const values = [badge(condition), query.name, report.customers[customer].id, days, range.reason,
    commandLine(commandFor(range.note, query, customer, first, last))];
  return make("tr", {}, ...values.map((value, index) => make("td", { "data-label": WORK_COLUMNS[index] }, value)));
}

// The command of the note, for a range of days. "{days}" stands for the partition or for the options of the range.
function commandFor(note, query, customer, first, last) {
  const id = report.customers[customer].id, command = note ? report.texts[note[4]] : "";
  const one = `${id}/${query.name}/${dayText(last)}`;
  const many = `--customer ${id} --query ${query.name} --since ${dayText(first)} --until ${dayText(last)}`;
  return command.replace("{days}", first === last || command.includes("state why") ? one : many);
}

// Lines break between the words, not at their hyphens.
const words = (text) => text.split(" ").flatMap((word) => [make("span", { class: "word" }, word), " "]);

function commandLine(text) {
  if (!text) return make("span", { class: "muted" }, "none");
  const copy = make("button", { type: "button", title: "Copy the command" }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(text);
    copy.textContent = "Copied";
  });
  return make("span", { class: "command" }, make("code", {}, ...words(text)), copy);
}

// ---- heat maps --------------------------------------------------------------------------------------------------
function showMaps(view) {
  const maps = find("maps");
  maps.replaceChildren();
  const lazily = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { entry.target.draw(); lazily.unobserve(entry.target); }
  }, { rootMargin: "400px" });
  for (const query of view.queries) {
    const box = make("div", { class: "map" });
    maps.append(make("h3", {}, query.name), box);
    const map = makeMap(query, view, box);
    box.append(map);
    lazily.observe(map);
  }
}

function makeMap(query, { customers, first, last }, box) {
  const days = last - first + 1, shown = Math.max(1, days);
  const width = Math.max(2, Math.min(18, Math.floor((box.clientWidth - LABELS - 16) / shown)));
  const height = customers.length > 60 ? 12 : 16;
  const canvas = make("canvas", { tabindex: "0", role: "application",
    "aria-label": `${query.name}: ${plural(customers.length, "customer")}, ${plural(Math.max(days, 0), "day")}` });
  const size = { width: LABELS + shown * width, height: TOP + customers.length * height };
  canvas.style.width = `${size.width}px`;
  canvas.style.height = `${size.height}px`;
  let cursor = { row: 0, day: last };
  canvas.draw = () => {
    const scale = window.devicePixelRatio || 1;
    canvas.width = size.width * scale;
    canvas.height = size.height * scale;
    const paint = canvas.getContext("2d");
    paint.scale(scale, scale);
    paint.font = "11px ui-monospace, monospace";
    paint.fillStyle = dark ? "#a8adb5" : "#60646c";
    for (let day = first; day <= last; day += 1) {
      const text = dayText(day);
      if (day === first || text.endsWith("-01")) paint.fillText(text.slice(0, 7), LABELS + (day - first) * width, 12);
    }
    customers.forEach((customer, row) => {
      paint.fillStyle = dark ? "#a8adb5" : "#60646c";
      paint.fillText(report.customers[customer].id.slice(0, 14), 2, TOP + row * height + height - 4);
      const cells = query.cells[customer];
      for (let day = first, end; day <= last; day = end) {
        for (end = day + 1; end <= last && width < 5 && cells[end] === cells[day]; end += 1);
        const condition = conditionAt(query, customer, day);
        if (state.hidden.has(condition.name)) continue;
        paint.fillStyle = color(condition);
        paint.fillRect(LABELS + (day - first) * width, TOP + row * height, (end - day) * width - (width > 4 ? 1 : 0), height - 1);
      }
    });
    paint.strokeStyle = dark ? "#fff" : "#000";
    if (document.activeElement === canvas && customers.length) {
      paint.strokeRect(LABELS + (cursor.day - first) * width - 0.5, TOP + cursor.row * height - 0.5, width + 1, height);
    }
  };
  const speak = () => {
    if (!customers.length) return;
    const condition = conditionAt(query, customers[cursor.row], cursor.day);
    find("spoken").textContent = `${report.customers[customers[cursor.row]].id}, ${dayText(cursor.day)}: ${condition.label}`;
    canvas.draw();
  };
  const at = (event) => ({ row: Math.floor((event.offsetY - TOP) / height), day: first + Math.floor((event.offsetX - LABELS) / width) });
  const inside = ({ row, day }) => row >= 0 && row < customers.length && day >= first && day <= last;
  canvas.addEventListener("mousemove", (event) => {
    const { row, day } = at(event);
    canvas.title = inside({ row, day })
      ? `${report.customers[customers[row]].id}  ${dayText(day)}  ${conditionAt(query, customers[row], day).label}` : "";
  });
  canvas.addEventListener("click", (event) => {
    if (!inside(at(event))) return;
    cursor = at(event);
    openDetails(query, customers[cursor.row], cursor.day, canvas);
  });
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -1e6], End: [0, 1e6] };
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && customers.length) openDetails(query, customers[cursor.row], cursor.day, canvas);
    else if (event.key in steps) {
      const [rows, days] = steps[event.key];
      cursor.row = Math.min(customers.length - 1, Math.max(0, cursor.row + rows));
      cursor.day = Math.min(last, Math.max(first, cursor.day + days));
      speak();
    } else return;
    event.preventDefault();
  });
  canvas.addEventListener("focus", speak);
  canvas.addEventListener("blur", () => canvas.draw());
  return canvas;
}

// ---- details of one day -----------------------------------------------------------------------------------------
function openDetails(query, customer, day, opener) {
  const panel = find("details"), condition = conditionAt(query, customer, day), note = noteAt(query, customer, day);
  const about = report.customers[customer], facts = make("dl");
  const fact = (name, value) => { if (value) facts.append(make("dt", {}, name), make("dd", {}, value)); };
  fact("Condition", badge(condition));
  fact("Meaning", condition.meaning);
  fact("Reason", note && report.texts[note[1]]);
  fact("Since", note && note[0] && new Date(note[0] * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC");
  fact("By", note && note[3]);
  fact("Attempts", note && String(note[2]));
  const rows = numbers(query.rows, customer), cost = numbers(query.cost, customer);
  fact("Rows", rows[day] === null || rows[day] === undefined ? null : rows[day].toLocaleString("en"));
  fact("Cost", cost[day] === null || cost[day] === undefined ? null : `${cost[day].toLocaleString("en")} ${about.currency}`);
  fact("Next command", commandLine(commandFor(note, query, customer, day, day)));
  fact("History", commandLine(`ads-pipeline state why ${report.source}/${about.id}/${query.name}/${dayText(day)}`));
  const close = make("button", { type: "button" }, "Close");
  close.addEventListener("click", closeDetails);
  panel.replaceChildren(close, make("h2", { id: "details-title" }, ...words(`${about.id}, ${query.name}, ${dayText(day)}`)), facts);
  panel.append(...chart("Rows per day", rows, day, ""), ...chart("Cost per day", cost, day, about.currency));
  panel.append(...restatementTable(query, customer));
  panel.hidden = false;
  panel.opener = opener;
  panel.focus();
}

function closeDetails() {
  const panel = find("details");
  if (panel.hidden) return;
  panel.hidden = true;
  panel.opener?.focus();
}

// Numbers are stored as differences from the day before; null means that readers see no row of the day.
function numbers(columns, customer) {
  if (!columns) return [];
  let last = 0;
  return columns[customer].map((each) => (each === null ? null : (last += each)));
}

function chart(title, values, day, unit) {
  const known = values.filter((each) => each !== null && each !== undefined);
  if (known.length < 2) return [];
  const width = 500, height = 110, top = Math.max(...known, 1), step = width / Math.max(1, values.length - 1);
  const point = (value, index) => `${(index * step).toFixed(1)},${(height - (value / top) * (height - 14)).toFixed(1)}`;
  let path = "", open = false;
  values.forEach((value, index) => {
    if (value !== null) path += `${open ? "L" : "M"}${point(value, index)}`;
    open = value !== null;
  });
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height + 16}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title}, at most ${top.toLocaleString("en")} ${unit}`);
  const draw = (tag, attributes, text = "") => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    svg.append(element);
  };
  draw("path", { d: path, fill: "none", stroke: "var(--accent)", "stroke-width": "1.5" });
  draw("line", { x1: day * step, x2: day * step, y1: 0, y2: height, stroke: "var(--muted)", "stroke-dasharray": "3 3" });
  draw("text", { x: 0, y: 10 }, `${top.toLocaleString("en")} ${unit}`);
  draw("text", { x: 0, y: height + 13 }, dayText(0));
  draw("text", { x: width, y: height + 13, "text-anchor": "end" }, dayText(values.length - 1));
  return [make("h3", {}, title), svg];
}

function restatementTable(query, customer) {
  const rows = query.restatements.filter((each) => each[0] === customer);
  if (!rows.length) return [];
  const body = make("tbody", {}, ...rows.slice(-30).reverse().map(([, day, at, before, after]) => make("tr", {},
    make("td", {}, dayText(day)), make("td", {}, new Date(at * 1000).toISOString().slice(0, 10)),
    make("td", { class: "number" }, before.toLocaleString("en")), make("td", { class: "number" }, after.toLocaleString("en")))));
  const head = ["Day", "Restated on", "Rows before", "Rows after"].map((name, index) =>
    make("th", { scope: "col", class: index > 1 ? "number" : "" }, name));
  return [make("h3", {}, `Restatements (${rows.length})`), make("table", {}, make("thead", {}, make("tr", {}, ...head)), body)];
}

// ---- all together -----------------------------------------------------------------------------------------------
function show() {
  writeAddress();
  const view = selected(), counts = new Map();
  for (const query of view.queries) for (const customer of view.customers) for (let day = view.first; day <= view.last; day += 1) {
    const { name } = conditionAt(query, customer, day);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  showLegend(counts);
  showWork(view);
  showMaps(view);
}

async function start() {
  report = await readContent();
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  dark = scheme.matches;
  scheme.addEventListener("change", () => { dark = scheme.matches; show(); });
  showFilters();
  readAddress();
  show();
  window.addEventListener("hashchange", () => { readAddress(); show(); });
  window.addEventListener("resize", () => showMaps(selected()));
  window.addEventListener("beforeprint", () => { dark = false; show(); document.querySelectorAll("canvas").forEach((map) => map.draw()); });
  window.addEventListener("afterprint", () => { dark = scheme.matches; show(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeDetails(); });
}
start();
