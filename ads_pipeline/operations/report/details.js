// The details of one day: its facts, rows and cost over time, and the restatements of its customer.
function openDetails(query, customer, day, opener) {
  const panel = find("details"), condition = conditionAt(query, customer, day), note = noteAt(query, customer, day);
  const about = report.customers[customer], facts = make("dl");
  const fact = (name, value) => { if (value) facts.append(make("dt", {}, name), make("dd", {}, value)); };
  fact("Condition", badge(condition));
  fact("Meaning", condition.meaning);
  fact("Reason", note && report.texts[note[1]]);
  fact("Since", note && note[0] && new Date(note[0] * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC");
  fact("Report", reportText(query, customer, day));
  fact("By", note && note[3]);
  fact("Attempts", note && String(note[2]));
  const rows = numbers(query.rows, customer), cost = numbers(query.cost, customer);
  fact("Rows", rows[day] === null || rows[day] === undefined ? null : rows[day].toLocaleString("en"));
  fact("Cost", cost[day] === null || cost[day] === undefined ? null : `${cost[day].toLocaleString("en")} ${about.currency}`);
  const history = `ads-pipeline state why ${about.id}/${query.name}/${dayText(day)}`;
  const command = commandFor(note, query, customer, day, day);
  fact("Next command", command && commandLine(command));
  if (command !== history) fact("History", commandLine(history));
  const close = make("button", { type: "button" }, "Close");
  close.addEventListener("click", closeDetails);
  panel.replaceChildren(close, make("h2", { id: "details-title" }, ...words(`${nameOf(about)}, ${query.name}, ${dayText(day)}`)), facts);
  panel.append(...chart("Rows per day", rows, day, ""), ...chart("Cost per day", cost, day, about.currency));
  panel.append(...restatementTable(query, customer));
  panel.hidden = false;
  panel.opener = opener;
  panel.focus();
}

function reportText(query, customer, day) {
  return { p: "Provisional: the source may still change the figures.", s: "Settled: the figures are final." }[query.reports[customer][day]];
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
  const width = 500, height = 110, top = Math.max(...known, 1), step = (width - 4) / Math.max(1, values.length - 1);
  const left = (index) => (2 + index * step).toFixed(1);
  const point = (value, index) => `${left(index)},${(height - (value / top) * (height - 14)).toFixed(1)}`;
  let path = "", open = false;
  values.forEach((value, index) => {
    if (value !== null) path += `${open ? "L" : "M"}${point(value, index)}h0`; // h0 shows a single day as a dot
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
  draw("path", { d: path, fill: "none", stroke: "var(--accent)", "stroke-width": "2", "stroke-linecap": "round" });
  draw("line", { x1: left(day), x2: left(day), y1: 0, y2: height, stroke: "var(--muted)", "stroke-dasharray": "3 3" });
  draw("text", { x: 0, y: 10 }, `${top.toLocaleString("en")} ${unit}`);
  draw("text", { x: 0, y: height + 13 }, dayText(0));
  draw("text", { x: width, y: height + 13, "text-anchor": "end" }, dayText(values.length - 1));
  return [make("h3", {}, title), svg];
}

function changeText(before, after) {
  if (before === null || before === undefined || after === null || after === undefined) return "";
  const [first, second] = [before, after].map((each) => each.toLocaleString("en"));
  return before === after ? second : `${first} → ${second}`;
}

function restatementTable(query, customer) {
  const rows = query.restatements.filter((each) => each[0] === customer);
  if (!rows.length) return [];
  const body = make("tbody", {}, ...rows.slice(-30).reverse().map(([, day, at, ...figures]) => make("tr", {},
    make("td", {}, dayText(day)), make("td", {}, new Date(at * 1000).toISOString().slice(0, 10)),
    ...[0, 2, 4].map((start) => make("td", { class: "number" }, changeText(figures[start], figures[start + 1]))))));
  const head = ["Day", "Restated on", "Rows", "Cost", "Conversions"].map((name, index) =>
    make("th", { scope: "col", class: index > 1 ? "number" : "" }, name));
  return [make("h3", {}, `Restatements (${rows.length})`), make("table", {}, make("thead", {}, make("tr", {}, ...head)), body)];
}
start();
