"use strict";
// The content, the filters and the legend. The content is gzip of JSON in base64. The other scripts show a section each.
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
const count = (number) => number.toLocaleString("en");
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const MAX_HOURS = 26; // a page is written at least once a day
const FILTERS = ["query", "customer", "since", "until"];
let report, dark;
const state = { query: "", customer: "", since: "", until: "", only: new Set() };

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
const isShown = (condition) => !state.only.size || state.only.has(condition.name);
const color = (condition) => (dark ? condition.dark : condition.light);
const swatch = (condition) => make("span", { class: "swatch", style: `background:${color(condition)}` });
const badge = (condition) => make("span", { class: "condition" }, swatch(condition), condition.label);
const dayCell = (text) => make("span", { class: "day" }, text);
const nameOf = ({ id, name }) => (name ? `${name} (${id})` : id);

// A customer as a person knows it: the name first, and the number below it.
function customerCell({ id, name }) {
  if (!name) return make("span", { class: "name" }, id);
  return make("span", {}, make("span", { class: "name", title: name }, name), " ", make("span", { class: "muted" }, id));
}

function isMatch(customer, text) {
  const digits = text.replaceAll("-", "");
  return (/^\d*$/.test(digits) && customer.id.includes(digits)) || nameOf(customer).toLowerCase().includes(text.toLowerCase());
}

// The selected days with one pass over them: how many have each condition, in all and for each customer.
function select() {
  const customers = [...report.customers.keys()].filter((each) => isMatch(report.customers[each], state.customer));
  const first = Math.max(0, state.since ? dayNumber(state.since) : 0);
  const last = Math.min(report.days - 1, state.until ? dayNumber(state.until) : report.days - 1);
  const queries = report.queries.filter((query) => !state.query || query.name === state.query);
  const counts = new Array(report.conditions.length).fill(0), perCustomer = new Map();
  let provisional = 0;
  for (const customer of customers) {
    const own = { counts: new Array(counts.length).fill(0), newest: -1 };
    for (const query of queries) for (let day = first; day <= last; day += 1) {
      const number = query.cells[customer].charCodeAt(day) - 97;
      own.counts[number] += 1;
      if (report.conditions[number].readable && day > own.newest) own.newest = day;
      if (query.reports[customer][day] === "p") provisional += 1;
    }
    own.counts.forEach((days, number) => (counts[number] += days));
    perCustomer.set(customer, own);
  }
  return { customers, first, last, queries, counts, perCustomer, provisional };
}

const sumWhere = (counts, test) => counts.reduce((sum, days, number) => (test(report.conditions[number]) ? sum + days : sum), 0);
const needing = (counts) => sumWhere(counts, (each) => each.needs_you);
const readable = (counts) => sumWhere(counts, (each) => each.readable);
const expected = (counts) => sumWhere(counts, (each) => each.name !== "not_expected");

function showSummary({ counts, provisional }) {
  const needed = needing(counts);
  const need = needed ? `${plural(needed, "day")} ${needed === 1 ? "needs" : "need"} you.` : "No day needs you.";
  const chosen = FILTERS.some((name) => state[name]) ? "selected" : "expected";
  const source = report.source + (provisional ? `, ${count(provisional)} of them provisional` : "");
  const at = new Date(report.generated_at * 1000).toISOString().slice(0, 16).replace("T", " ");
  find("summary").textContent =
    `${need} Readers see ${count(readable(counts))} of ${count(expected(counts))} ${chosen} days of ${source}, as of ${at} UTC.`;
}

// A page that somebody has mailed or that nobody renews looks like a new one.
function showAge() {
  const hours = Math.floor((Date.now() / 1000 - report.generated_at) / 3600), days = Math.floor(hours / 24);
  find("age").hidden = hours < MAX_HOURS;
  find("age").textContent = `This page is ${plural(days, "day")} old and shows nothing that happened since. To write it again: ads-pipeline report`;
}

// ---- filters, kept in the address -------------------------------------------------------------------------------
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of FILTERS) find("filters").elements[name].value = state[name] = given.get(name) ?? "";
  state.only = new Set((given.get("only") ?? "").split(",").filter(Boolean));
}

function writeAddress() {
  const kept = new URLSearchParams();
  for (const name of FILTERS) if (state[name]) kept.set(name, state[name]);
  if (state.only.size) kept.set("only", [...state.only].join(","));
  history.replaceState(null, "", kept.size ? `#${kept}` : location.pathname + location.search);
}

function showFilters() {
  const form = find("filters");
  for (const query of report.queries) form.elements.query.append(make("option", { value: query.name }, query.name));
  for (const customer of report.customers) find("customers").append(make("option", { value: customer.name || customer.id }, customer.id));
  for (const name of ["since", "until"]) {
    form.elements[name].min = report.first_day;
    form.elements[name].max = dayText(report.days - 1);
  }
  form.addEventListener("input", (event) => {
    state[event.target.name] = event.target.value.trim();
    show();
  });
  form.addEventListener("reset", () => {
    Object.assign(state, { query: "", customer: "", since: "", until: "", only: new Set() });
    setTimeout(show);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
}

function selectCustomer(customer) {
  state.customer = find("filters").elements.customer.value = report.customers[customer].id;
  show();
  find("work").scrollIntoView();
}

function showLegend(counts) {
  const legend = find("legend");
  legend.querySelectorAll("button").forEach((button) => button.remove());
  report.conditions.forEach((condition, number) => {
    const button = make("button", { type: "button", title: condition.meaning, "data-name": condition.name,
      class: counts[number] ? "" : "none",
      "aria-pressed": String(state.only.has(condition.name)) }, swatch(condition), `${condition.label} ${count(counts[number])}`);
    button.addEventListener("click", () => {
      if (!state.only.delete(condition.name)) state.only.add(condition.name);
      show();
      legend.querySelector(`[data-name="${condition.name}"]`).focus();
    });
    legend.append(button);
  });
}

// ---- tables -----------------------------------------------------------------------------------------------------
const MAX_ROWS = 50;

// A table of which the first rows are shown, and the others when asked for. Each row is a list of cells.
function tableOf(columns, rows, makeRow) {
  const head = columns.map(([name, kind]) => make("th", { scope: "col", class: kind ?? "" }, name)), body = make("tbody");
  const add = (from, to) => body.append(...rows.slice(from, to).map((row) => make("tr", {}, ...makeRow(row).map((value, index) =>
    make("td", { "data-label": columns[index][0], class: columns[index][1] ?? "" }, value)))));
  add(0, MAX_ROWS);
  const parts = [make("table", {}, make("thead", {}, make("tr", {}, ...head)), body)];
  if (rows.length > MAX_ROWS) {
    const more = make("button", { type: "button", class: "more" }, `Show ${count(rows.length - MAX_ROWS)} more`);
    more.addEventListener("click", () => { add(MAX_ROWS); more.remove(); });
    parts.push(more);
  }
  return parts;
}

// ---- all together -----------------------------------------------------------------------------------------------
function show() {
  writeAddress();
  const view = select();
  showSummary(view);
  showLegend(view.counts);
  showWork(view);
  showCustomers(view);
  showChanges(view);
  showMaps(view);
}

async function start() {
  report = await readContent();
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  dark = scheme.matches;
  scheme.addEventListener("change", () => { dark = scheme.matches; show(); });
  showAge();
  showFilters();
  showMonths();
  showZoom();
  readAddress();
  show();
  window.addEventListener("hashchange", () => { readAddress(); show(); });
  window.addEventListener("resize", () => showMaps(select()));
  window.addEventListener("beforeprint", () => {
    dark = false;
    show();
    document.querySelectorAll(".map").forEach((map) => map.draw());
  });
  window.addEventListener("afterprint", () => { dark = scheme.matches; show(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeDetails(); });
}
