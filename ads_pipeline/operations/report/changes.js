// What changed in the cost of a month since it was first reported: a line for each customer, a total for each currency.
const CHANGE_COLUMNS = [["Customer"], ["First reported", "number"], ["Now", "number"], ["Change", "number"], ["Currency"], ["Days changed", "number"], ["Last change on"]];
const money = (amount) => amount.toLocaleString("en", { maximumFractionDigits: 0 });
const signed = (amount) => amount.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2, signDisplay: "exceptZero" });

function showMonths() {
  const months = [...new Set(Array.from({ length: report.days }, (_, day) => dayText(day).slice(0, 7)))].reverse();
  const now = new Date(report.generated_at * 1000), before = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - 1, 1));
  find("month").append(...months.map((month) => make("option", { value: month }, month)));
  find("month").value = months.includes(before.toISOString().slice(0, 7)) ? before.toISOString().slice(0, 7) : months[0];
  find("month").addEventListener("input", () => showChanges(select()));
}

// Reports of one account repeat each other's cost, so one report is chosen: that which has the most cost on most days.
function reportOfCost({ queries, customers }) {
  const known = queries.filter((query) => query.cost), wins = new Map(known.map((query) => [query, 0]));
  for (const customer of customers) {
    const costs = known.map((query) => numbers(query.cost, customer));
    for (let day = 0; day < report.days; day += 1) {
      const most = Math.max(...costs.map((cost) => cost[day] ?? -1));
      if (most >= 0) known.forEach((query, number) => { if (costs[number][day] === most) wins.set(query, wins.get(query) + 1); });
    }
  }
  return known.sort((a, b) => wins.get(b) - wins.get(a))[0];
}

// Of each restated day the first figure, the newest one, and when it changed last.
function changedDays(query, month, chosen) {
  const days = new Map();
  for (const [customer, day, at, , , before, after] of query.restatements) {
    if (!chosen.has(customer) || dayText(day).slice(0, 7) !== month || before === null || after === null) continue;
    const known = days.get(`${customer},${day}`);
    if (!known) days.set(`${customer},${day}`, { customer, firstAt: at, lastAt: at, first: before, now: after });
    else {
      if (at < known.firstAt) Object.assign(known, { firstAt: at, first: before });
      if (at >= known.lastAt) Object.assign(known, { lastAt: at, now: after });
    }
  }
  return [...days.values()].filter(({ first, now }) => first !== now);
}

function changeRows(query, month, customers) {
  const changed = Map.groupBy(changedDays(query, month, new Set(customers)), ({ customer }) => customer), rows = [];
  for (const customer of customers) {
    const now = numbers(query.cost, customer).reduce((sum, each, day) => (dayText(day).slice(0, 7) === month ? sum + (each ?? 0) : sum), 0);
    const days = changed.get(customer) ?? [], change = days.reduce((sum, day) => sum + day.now - day.first, 0);
    if (now || days.length) rows.push({ customer, now, change, days: days.length, at: Math.max(0, ...days.map((day) => day.lastAt)) });
  }
  return rows.sort((a, b) => Math.abs(b.change) - Math.abs(a.change) || b.now - a.now);
}

function showChanges(view) {
  const { customers } = view, query = reportOfCost(view), section = find("changes"), month = find("month").value;
  section.hidden = !query;
  if (!query) return;
  const rows = changeRows(query, month, customers);
  const groups = [...Map.groupBy(rows, ({ customer }) => report.customers[customer].currency)].sort(([a], [b]) => (a < b ? -1 : 1));
  const totals = groups.map(([currency, own]) => totalOf(currency, own));
  find("changes-title").textContent = `Changes of cost in ${month}, by ${query.name}`;
  find("change-summary").textContent = summarizeChanges(totals, `of ${query.name} in ${month}`);
  // Each currency with its customers below it: amounts of different currencies are never compared.
  const lines = groups.flatMap(([, own], number) => [totals[number], ...own]);
  find("change-list").replaceChildren(...(lines.length ? tableOf(CHANGE_COLUMNS, lines, changeRow) : []));
}

function totalOf(currency, rows) {
  const sum = (name) => rows.reduce((total, row) => total + row[name], 0);
  return { currency, now: sum("now"), change: sum("change"), days: sum("days"), at: Math.max(...rows.map((row) => row.at)) };
}

function summarizeChanges(totals, where) {
  if (!totals.length) return `Readers see no cost ${where}.`;
  const changed = totals.filter(({ days }) => days).map(({ currency, change, days }) => `${signed(change)} ${currency} on ${plural(days, "day")}`);
  return changed.length ? `Since it was first reported, the cost ${where} has changed by ${changed.join(", ")}.` : `No cost ${where} has changed since it was first reported.`;
}

function changeRow({ customer, currency, now, change, days, at }) {
  const about = customer === undefined ? null : report.customers[customer];
  return [about ? customerCell(about) : make("strong", {}, `All in ${currency || "an unknown currency"}`), money(now - change), money(now), days ? signed(change) : "none",
    about ? about.currency : currency, count(days), dayCell(at ? new Date(at * 1000).toISOString().slice(0, 10) : "")];
}
