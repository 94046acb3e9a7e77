// Keeps a page as the server says. Whatever comes from a job is put in as text, never as markup.
import { Charts, timeText } from "./charts.js";

const main = document.getElementById("main");
const job = main.dataset.job;
const base = job === undefined ? "" : location.pathname.replace(/\/$/, "");
const charts = job === undefined ? null : new Charts();
const link = document.getElementById("link");
let nonce = document.body.dataset.nonce;
let texts = {};

const places = new Map();
for (const element of document.querySelectorAll("[data-text]")) {
  const known = places.get(element.dataset.text) ?? [];
  places.set(element.dataset.text, [...known, element]);
  texts[element.dataset.text] = element.textContent;
}

const tables = new Map();
for (const body of document.querySelectorAll("[data-table]")) {
  tables.set(body.dataset.table, {
    body,
    rows: new Map([...body.children].map((row) => [row.dataset.key, row])),
    template: document.getElementById(`row-${body.dataset.table}`).content.firstElementChild,
  });
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// The places of a row that change, looked up once.
const partsOf = new WeakMap();

function parts(row) {
  let found = partsOf.get(row);
  if (!found) {
    found = ["cell", "meter", "time", "shown"].map((kind) => [...row.querySelectorAll(`[data-${kind}]`)]);
    partsOf.set(row, found);
  }
  return found;
}

function fill(row, key, facts) {
  const [cells, meters, times, shown] = parts(row);
  if (row.dataset.key !== key) row.dataset.key = key;
  const state = facts.state ?? facts.kind ?? "";
  if (row.dataset.state !== state) row.dataset.state = state;
  for (const cell of cells) {
    setText(cell, String(facts[cell.dataset.cell] ?? ""));
    if ("link" in cell.dataset) cell.href = `/jobs/${encodeURIComponent(key)}`;
  }
  for (const meter of meters) {
    meter.value = facts[meter.dataset.meter] || 0;
    meter.hidden = !facts[meter.dataset.meter];
  }
  for (const time of times) setText(time, timeText(facts[time.dataset.time]));
  for (const element of shown) element.hidden = !facts[element.dataset.shown];
}

function update(name, { set = {}, order }) {
  const table = tables.get(name);
  if (!table) return;
  for (const [key, facts] of Object.entries(set)) {
    let row = table.rows.get(key);
    if (!row) {
      row = table.template.cloneNode(true);
      table.rows.set(key, row);
    }
    fill(row, key, facts);
  }
  if (!order) return;
  const wanted = new Set(order);
  for (const [key, row] of table.rows) {
    if (!wanted.has(key)) { row.remove(); table.rows.delete(key); }
  }
  let place = table.body.firstElementChild;
  for (const key of order) {
    const row = table.rows.get(key);
    if (row === place) place = place.nextElementSibling;
    else if (row) table.body.insertBefore(row, place);
  }
  for (const section of document.querySelectorAll(`[data-section="${name}"]`)) section.hidden = !order.length;
  for (const word of document.querySelectorAll(`[data-empty="${name}"]`)) word.hidden = order.length > 0;
}

function apply(view) {
  for (const [key, text] of Object.entries(view.text ?? {})) {
    texts[key] = text;
    for (const element of places.get(key) ?? []) setText(element, text);
    for (const element of document.querySelectorAll(`[data-when="${key}"]`)) element.hidden = !text;
  }
  for (const [name, change] of Object.entries(view.tables ?? {})) update(name, change);
  if (!charts) return;
  for (const [name, columns] of Object.entries(view.series ?? {})) charts.replace(name, columns);
  for (const [name, columns] of Object.entries(view.points ?? {})) charts.append(name, columns);
  if (view.marks) charts.mark(view.marks);
  showState();
}

function showState() {
  const state = texts.state;
  document.getElementById("top").dataset.state = state;
  const over = ["succeeded", "failed", "stopped"].includes(state);
  document.getElementById("actions").hidden = over;
  document.getElementById("autoscaling").hidden = texts.autoscaling.startsWith("sized");
  setText(document.querySelector("[data-action=pause]"), texts.paused ? "Resume autoscaling" : "Pause autoscaling");
  for (const name of ["workers", "servers"]) {
    const input = document.getElementById(name);
    if (document.activeElement !== input && texts[`${name}_wanted`] !== input.dataset.wanted) {
      input.dataset.wanted = input.value = texts[`${name}_wanted`];
    }
  }
}

function follow() {
  const source = new EventSource(`${base}/events`);
  const on = (event) => { apply(JSON.parse(event.data)); };
  source.addEventListener("whole", on);
  source.addEventListener("change", on);
  source.addEventListener("open", () => { link.textContent = "live"; link.classList.remove("lost"); });
  source.addEventListener("error", () => {
    link.textContent = "not live: the dashboard is away";
    link.classList.add("lost");
    // A browser gives up when it is refused; then it is tried again, in case the dashboard comes back.
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  });
}

async function ask(action, body) {
  const answer = document.getElementById("answer");
  try {
    const response = await fetch(`${base}/${action}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Elastane-Nonce": nonce },
      body: JSON.stringify(body),
    });
    const text = await response.text();
    let said = {};
    try { said = JSON.parse(text); } catch { said = { error: text }; }
    nonce = said.nonce ?? nonce;
    answer.classList.toggle("refused", !response.ok);
    answer.textContent = said.said ?? said.error ?? "";
  } catch {
    answer.classList.add("refused");
    answer.textContent = "the dashboard does not answer";
  }
}

// What cannot be taken back is asked for twice.
function sure(button) {
  if (button.classList.contains("sure")) { button.classList.remove("sure"); return true; }
  const before = button.textContent;
  button.classList.add("sure");
  button.textContent = "Sure?";
  setTimeout(() => { button.classList.remove("sure"); button.textContent = before; }, 4000);
  return false;
}

const log = document.getElementById("log");
let logged = "";

async function readLog() {
  if (!log.open) return;
  const node = logged;
  try {
    const response = await fetch(`${base}/logs/${encodeURIComponent(node)}`);
    const text = response.ok ? (await response.json()).lines.join("\n") : await response.text();
    if (node === logged) {
      const lines = document.getElementById("log-lines");
      const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
      setText(lines, text || "nothing yet");
      if (atEnd) lines.scrollTop = lines.scrollHeight;
    }
  } catch { /* The page says that the dashboard is away. */ }
  setTimeout(readLog, 1000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const row = button.closest("tr");
  if ("log" in button.dataset) {
    logged = row.querySelector("[data-cell=name]").textContent;
    document.getElementById("log-name").textContent = logged;
    document.getElementById("log-lines").textContent = "…";
    log.showModal();
    readLog();
  } else if ("drain" in button.dataset) {
    if (sure(button)) ask("drain", { node: row.querySelector("[data-cell=name]").textContent });
  } else if (button.dataset.action === "pause") {
    ask("autoscaling", { paused: !texts.paused });
  } else if (button.dataset.action) {
    const name = button.dataset.action;
    const number = document.getElementById(name).valueAsNumber;
    if (Number.isInteger(number)) ask("scale", { [name]: number });
  } else if (button.id === "log-close") {
    log.close();
  }
});

document.getElementById("actions")?.addEventListener("submit", (event) => event.preventDefault());
for (const input of document.querySelectorAll("#actions input")) {
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") document.querySelector(`[data-action=${input.id}]`).click();
  });
}
for (const time of document.querySelectorAll("time[data-epoch]")) setText(time, timeText(Number(time.dataset.epoch)));
follow();
