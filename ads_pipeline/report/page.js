"use strict";
// The filters, the work list and the maps; `details.js` has the details of one day. The content is gzip of JSON in base64.
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
const LABELS = 104, TOP = 18, MONTH = 76, MAX_WORK = 50;
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
  const add = (from, to) => body.append(...ranges.slice(from, to).map(workRow));
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
    const map = makeMap(query, view, maps.clientWidth - 16);
    maps.append(make("div", {}, make("h3", {}, query.name), make("div", { class: "map" }, map)));
    lazily.observe(map);
  }
}

function makeMap(query, { customers, first, last }, space) {
  const days = last - first + 1, shown = Math.max(1, days);
  const width = Math.max(2, Math.min(18, Math.floor((space - LABELS) / shown)));
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
      const text = dayText(day), left = (day - first) * width;
      if (day === first) paint.fillText(text, LABELS, 12);
      else if (text.endsWith("-01") && left > MONTH && (last - day) * width > MONTH / 2) paint.fillText(text.slice(0, 7), LABELS + left, 12);
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
  window.addEventListener("beforeprint", () => {
    dark = false;
    show();
    document.querySelectorAll("canvas").forEach((map) => map.draw());
  });
  window.addEventListener("afterprint", () => { dark = scheme.matches; show(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeDetails(); });
}
start();
