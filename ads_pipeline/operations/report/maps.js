// The maps: a row for each customer, a column for each day. Names and dates stay in sight while a map is scrolled.
const LABELS = 150, TOP = 18, MONTH = 76, MIN_WIDTH = 2, MAX_WIDTH = 32, FADED = 0.12;
let zoom = 0; // steps wider or narrower than what fits

function showZoom() {
  find("zoom").addEventListener("click", (event) => {
    const step = Number(event.target.dataset?.step ?? 0);
    if (!step) return;
    zoom += step;
    showMaps(select());
  });
}

function showMaps(view) {
  const maps = find("maps");
  maps.replaceChildren();
  const lazily = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { entry.target.draw(); lazily.unobserve(entry.target); }
  }, { rootMargin: "400px" });
  for (const query of view.queries) {
    const map = makeMap(query, view, maps.clientWidth - 16);
    maps.append(make("div", {}, make("h3", {}, query.name), map));
    lazily.observe(map);
  }
}

const fitting = (space, days) => Math.max(MIN_WIDTH, Math.min(18, Math.floor((space - LABELS) / days)));

function makeCanvas(width, height, attributes) {
  return make("canvas", { ...attributes, style: `width:${width}px;height:${height}px` });
}

function paintOn(canvas) {
  const scale = window.devicePixelRatio || 1, { width, height } = canvas.style;
  canvas.width = parseFloat(width) * scale;
  canvas.height = parseFloat(height) * scale;
  const paint = canvas.getContext("2d");
  paint.scale(scale, scale);
  paint.font = "11px ui-monospace, monospace";
  paint.fillStyle = dark ? "#a8adb5" : "#60646c";
  return paint;
}

function cutText(paint, text, width) {
  let end = text.length;
  while (end > 1 && paint.measureText(end < text.length ? `${text.slice(0, end)}…` : text).width > width) end -= 1;
  return end < text.length ? `${text.slice(0, end)}…` : text;
}

function makeMap(query, { customers, first, last }, space) {
  const days = last - first + 1, shown = Math.max(1, days);
  const width = Math.max(MIN_WIDTH, Math.min(MAX_WIDTH, Math.round(fitting(space, shown) * 1.5 ** zoom)));
  const height = customers.length > 60 ? 12 : 16, rows = customers.length * height;
  const dates = makeCanvas(shown * width, TOP, { class: "dates", "aria-hidden": "true" });
  const names = makeCanvas(LABELS, rows, { class: "names", "aria-hidden": "true" });
  const canvas = makeCanvas(shown * width, rows, { class: "days", tabindex: "0", role: "application",
    "aria-label": `${query.name}: ${plural(customers.length, "customer")}, ${plural(Math.max(days, 0), "day")}` });
  const map = make("div", { class: "map" }, make("span", { class: "corner" }), dates, names, canvas);
  let cursor = { row: 0, day: last };

  const drawDates = () => {
    const paint = paintOn(dates);
    for (let day = first; day <= last; day += 1) {
      const text = dayText(day), left = (day - first) * width;
      if (day === first) paint.fillText(text, 0, 12);
      else if (text.endsWith("-01") && left > MONTH && (last - day) * width > MONTH / 2) paint.fillText(text.slice(0, 7), left, 12);
      else if (width >= 24 && left > MONTH) paint.fillText(text.slice(8), left + 4, 12);
    }
  };
  const drawNames = () => {
    const paint = paintOn(names);
    customers.forEach((customer, row) => {
      const about = report.customers[customer];
      paint.fillText(cutText(paint, about.name || about.id, LABELS - 8), 2, row * height + height - 4);
    });
  };
  const drawDays = () => {
    const paint = paintOn(canvas);
    customers.forEach((customer, row) => {
      const cells = query.cells[customer];
      for (let day = first, end; day <= last; day = end) {
        for (end = day + 1; end <= last && width < 5 && cells[end] === cells[day]; end += 1);
        const condition = conditionAt(query, customer, day);
        paint.globalAlpha = isShown(condition) ? 1 : FADED;
        paint.fillStyle = color(condition);
        paint.fillRect((day - first) * width, row * height, (end - day) * width - (width > 4 ? 1 : 0), height - 1);
      }
    });
    paint.globalAlpha = 1;
    paint.strokeStyle = dark ? "#fff" : "#000";
    if (document.activeElement === canvas && customers.length) {
      paint.strokeRect((cursor.day - first) * width - 0.5, cursor.row * height - 0.5, width + 1, height);
    }
  };
  map.draw = () => [drawDates, drawNames, drawDays].forEach((draw) => draw());

  const about = ({ row, day }) => {
    const condition = conditionAt(query, customers[row], day);
    return `${nameOf(report.customers[customers[row]])}  ${dayText(day)}  ${condition.label}`;
  };
  const at = (event) => ({ row: Math.floor(event.offsetY / height), day: first + Math.floor(event.offsetX / width) });
  const inside = ({ row, day }) => row >= 0 && row < customers.length && day >= first && day <= last;
  const open = () => openDetails(query, customers[cursor.row], cursor.day, canvas);
  const speak = () => {
    if (!customers.length) return;
    find("spoken").textContent = about(cursor);
    drawDays();
  };
  canvas.addEventListener("mousemove", (event) => { canvas.title = inside(at(event)) ? about(at(event)) : ""; });
  canvas.addEventListener("click", (event) => {
    if (!inside(at(event))) return;
    cursor = at(event);
    open();
  });
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -1e6], End: [0, 1e6] };
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && customers.length) open();
    else if (event.key in steps) {
      const [rowStep, dayStep] = steps[event.key];
      cursor.row = Math.min(customers.length - 1, Math.max(0, cursor.row + rowStep));
      cursor.day = Math.min(last, Math.max(first, cursor.day + dayStep));
      speak();
    } else return;
    event.preventDefault();
  });
  canvas.addEventListener("focus", speak);
  canvas.addEventListener("blur", drawDays);
  return map;
}
