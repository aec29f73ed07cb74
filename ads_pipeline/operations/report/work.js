// The work list: the days that need a person, and the others that readers do not see, grouped by condition, query and
// reason. Below them the customers.
const WORK_COLUMNS = [["Condition"], ["Query"], ["Customer"], ["Days"], ["Reason"], ["Next command"]];
const CUSTOMER_COLUMNS = [["Customer"], ["Currency"], ["Need you", "number"], ["Readable", "number"], ["Newest readable day"]];
const isAbsent = (condition) => !condition.needs_you && !condition.readable && condition.name !== "not_expected";

function workRanges({ customers, first, last, queries }, isListed) {
  const ranges = [];
  for (const query of queries) {
    for (const customer of customers) {
      let open = null;
      for (let day = first; day <= last; day += 1) {
        const condition = conditionAt(query, customer, day);
        if (!isListed(condition) || !isShown(condition)) { open = null; continue; }
        const note = noteAt(query, customer, day), reason = note ? report.texts[note[1]] : "";
        if (open && open.condition === condition && open.reason === reason && open.note?.[4] === note?.[4]) open.last = day;
        else ranges.push((open = { query, customer, condition, reason, note, first: day, last: day }));
      }
    }
  }
  return ranges;
}

const daysOf = (ranges) => ranges.reduce((sum, range) => sum + range.last - range.first + 1, 0);

// Ranges with the same reason are one group. The most urgent condition is first, and of each the newest day.
function groupRanges(ranges) {
  const groups = new Map();
  for (const range of ranges.sort((a, b) => a.condition.rank - b.condition.rank || b.last - a.last)) {
    const key = JSON.stringify([range.condition.name, range.query.name, range.reason]);
    groups.set(key, [...(groups.get(key) ?? []), range]);
  }
  return [...groups.values()];
}

function showWork(view) {
  const groups = groupRanges(workRanges(view, (condition) => condition.needs_you)), days = daysOf(groups.flat());
  const others = groupRanges(workRanges(view, isAbsent)), absent = daysOf(others.flat());
  find("work-title").textContent = days ? `${plural(days, "day")} ${days === 1 ? "needs" : "need"} you` : "No day needs you";
  find("work-list").replaceChildren(...(days ? tableOf(WORK_COLUMNS, groups, workRow) : []));
  find("others").hidden = !absent;
  find("others-title").textContent = `${plural(absent, "more day")} ${absent === 1 ? "is" : "are"} not readable and ${absent === 1 ? "needs" : "need"} nobody`;
  find("other-list").replaceChildren(...(absent ? tableOf(WORK_COLUMNS, others, workRow) : []));
}

function workRow(group) {
  const { query, customer, condition, reason, first, last, note } = group[0];
  if (group.length === 1) {
    return [badge(condition), query.name, customerCell(report.customers[customer]), dayButton(group[0]), reason,
      commandLine(commandFor(note, query, customer, first, last))];
  }
  const customers = new Set(group.map((range) => range.customer)), list = make("div", { class: "ranges" });
  const summary = make("summary", {}, `Show ${plural(group.length, "command")}`), details = make("details", {}, summary, list);
  details.addEventListener("toggle", () => list.replaceChildren(...(details.open ? group.flatMap(rangeLine) : [])));
  const only = customers.size === 1 ? customerCell(report.customers[customer]) : plural(customers.size, "customer");
  return [badge(condition), query.name, only, plural(daysOf(group), "day"), reason, details];
}

function rangeLine(range) {
  const { query, customer, note, first, last } = range;
  return [make("p", {}, customerCell(report.customers[customer]), " ", dayButton(range)),
    commandLine(commandFor(note, query, customer, first, last))];
}

function dayButton({ query, customer, first, last }) {
  const days = make("button", { type: "button" }, first === last ? dayText(first) : `${dayText(first)} to ${dayText(last)}`);
  days.addEventListener("click", () => openDetails(query, customer, last, days));
  return days;
}

// The command of the note, for a range of days. "{days}" stands for the partition or for the options of the range.
function commandFor(note, query, customer, first, last) {
  const id = report.customers[customer].id, command = note ? report.texts[note[4]] : "";
  const one = `${id}/${query.name}/${dayText(last)}`;
  const many = `--customer ${id} --query ${query.name} --since ${dayText(first)} --until ${dayText(last)}`;
  const takesOne = first === last || command.includes(" state why ") || command.includes(" --run ");
  return command.replace("{days}", takesOne ? one : many);
}

// Lines break between the words and after a slash, not at hyphens.
const words = (text) => text.split(" ").flatMap((word) => [...word.split(/(?<=\/)/).map((piece) => make("span", { class: "word" }, piece)), " "]);

function commandLine(text) {
  if (!text) return make("span", { class: "muted" }, "none");
  const copy = make("button", { type: "button", title: "Copy the command" }, "Copy");
  const code = make("code", {}, ...words(text));
  copy.addEventListener("click", () => {
    getSelection().selectAllChildren(code); // some browsers give a file no clipboard
    (navigator.clipboard?.writeText(text) ?? Promise.reject()).then(() => (copy.textContent = "Copied"), () => (copy.textContent = "Ctrl+C copies"));
  });
  return make("span", { class: "command" }, code, copy);
}

// ---- customers --------------------------------------------------------------------------------------------------
function showCustomers({ perCustomer }) {
  const rows = [...perCustomer].sort(([, a], [, b]) => needing(b.counts) - needing(a.counts));
  find("customers-title").textContent = plural(rows.length, "customer");
  find("customer-list").replaceChildren(...tableOf(CUSTOMER_COLUMNS, rows, customerRow));
}

function customerRow([customer, { counts, newest }]) {
  const about = report.customers[customer], needed = needing(counts);
  const chosen = make("button", { type: "button", class: "link", title: `Show only ${nameOf(about)}` }, customerCell(about));
  chosen.addEventListener("click", () => selectCustomer(customer));
  return [chosen, about.currency, make("span", { class: needed ? "urgent" : "muted" }, count(needed)),
    `${count(readable(counts))} of ${count(expected(counts))}`, dayCell(newest < 0 ? "none" : dayText(newest))];
}
