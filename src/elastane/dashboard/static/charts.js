// The charts of a job's page: one line each over the same time, and the marks of who came and went.
const SHAPES = { join: "▲", drain: "▽", crash: "✖", resize: "◆" };

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export const timeText = (epoch) => clock.format(new Date(epoch * 1000));

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function short(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return `${+value.toPrecision(4)}`;
}

export class Charts {
  constructor() {
    this.all = new Map();
    this.marks = [];
    this.span = [Date.now() / 1000 - 10, Date.now() / 1000];
    this.dirty = new Set();
    for (const figure of document.querySelectorAll("figure[data-chart]")) this.add(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const chart of this.all.values()) chart.make();
    });
  }

  add(figure) {
    const chart = new Chart(figure, this);
    this.all.set(figure.dataset.chart, chart);
    return chart;
  }

  named(name) {
    const known = this.all.get(name);
    if (known || !name.startsWith("metric:")) return known;
    const figure = document.getElementById("chart").content.firstElementChild.cloneNode(true);
    figure.dataset.chart = name;
    figure.querySelector("h2").textContent = `Evaluation: ${name.slice("metric:".length)}`;
    document.getElementById("charts").append(figure);
    return this.add(figure);
  }

  replace(name, columns) {
    const chart = this.named(name);
    if (chart) { chart.data = columns; this.changed(chart); }
  }

  append(name, [times, values]) {
    const chart = this.named(name);
    if (!chart) return;
    const [known, before] = chart.data;
    times.forEach((time, place) => {
      if (!known.length || time > known[known.length - 1]) { known.push(time); before.push(values[place]); }
    });
    this.changed(chart);
  }

  mark(marks) {
    this.marks = marks;
    const chart = this.all.get("workers");
    if (chart) this.changed(chart);
  }

  // Drawn at most once a frame, however much came.
  changed(chart) {
    if (!this.dirty.size) requestAnimationFrame(() => this.draw());
    this.dirty.add(chart);
  }

  draw() {
    const times = [...this.all.values()].flatMap((chart) => chart.data[0].length ? [chart.data[0][0], chart.data[0][chart.data[0].length - 1]] : []);
    if (times.length) {
      const first = Math.min(...times), last = Math.max(...times);
      this.span = [first, Math.max(last, first + 10)];
    }
    this.dirty.clear();
    for (const chart of this.all.values()) chart.show();
  }
}

class Chart {
  constructor(figure, charts) {
    this.figure = figure;
    this.charts = charts;
    this.name = figure.dataset.chart;
    this.data = [[], []];
    this.readout = figure.querySelector(".readout");
    figure.setAttribute("role", "img");
    new ResizeObserver(() => this.plot && this.plot.setSize(this.size())).observe(figure);
  }

  size() {
    const style = getComputedStyle(this.figure);
    const width = this.figure.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return { width: Math.max(100, Math.floor(width)), height: Number(this.figure.dataset.height || 150) };
  }

  make() {
    if (this.plot) this.plot.destroy();
    this.figure.hidden = false;
    if (this.figure.parentElement.dataset.charts !== undefined) this.figure.parentElement.hidden = false;
    const counts = this.name === "workers";
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const fromZero = !(this.name === "loss" || this.name.startsWith("metric:"));
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: false },
      padding: [counts ? 18 : 8, 8, 0, 0],
      cursor: { sync: { key: "job" }, drag: { x: false, y: false }, y: false, points: { size: 7 } },
      scales: {
        x: { time: false, range: () => this.charts.span },
        y: {
          range: (_, low, high) => {
            if (low === null) return [0, 1];
            if (fromZero) return [0, high > 0 ? high * 1.12 : 1];
            const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
            return [low - room, high + room];
          },
        },
      },
      axes: [
        { ...axis, size: 26, space: 90, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000], values: (_, ticks) => ticks.map((tick) => (this.charts.span[1] - this.charts.span[0] > 86400 ? day : clock).format(new Date(tick * 1000))) },
        { ...axis, size: 46, space: 26, values: (_, ticks) => ticks.map(short), ...(counts ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] } : {}) },
      ],
      series: [
        {},
        {
          stroke: colour("accent"), width: 2, fill: fromZero ? colour("fill") : undefined,
          paths: counts ? uPlot.paths.stepped({ align: 1 }) : undefined,
          points: { show: (_, __, first, last) => this.name.startsWith("metric:") || last - first < 1, size: 6 },
        },
      ],
      hooks: { draw: counts ? [(plot) => this.drawMarks(plot)] : [], setCursor: [(plot) => this.read(plot)] },
    }, this.data, this.figure);
  }

  show() {
    if (!this.plot) { if (this.data[0].length) this.make(); else return; }
    this.plot.setData(this.data, false);
    this.plot.batch(() => {
      this.plot.setScale("x", { min: this.charts.span[0], max: this.charts.span[1] });
      this.plot.redraw();
    });
    const last = this.data[1][this.data[1].length - 1];
    const title = this.figure.querySelector("h2")?.textContent ?? "Workers over time";
    this.figure.setAttribute("aria-label", `${title}: now ${short(last)}`);
    this.read(this.plot);
  }

  drawMarks(plot) {
    const { ctx } = plot;
    const ratio = devicePixelRatio;
    const { top, height, left, width } = plot.bbox;
    ctx.save();
    ctx.textAlign = "center";
    ctx.font = `${13 * ratio}px system-ui, sans-serif`;
    ctx.lineWidth = ratio;
    // Many marks would hide the line: then they have no lines of their own, and of those of a kind some are left out.
    const lines = this.charts.marks.length <= 60;
    const drawn = {};
    for (const mark of this.charts.marks) {
      const x = plot.valToPos(mark.at, "x", true);
      if (x < left - 1 || x > left + width + 1) continue;
      if (!lines && x - (drawn[mark.kind] ?? -Infinity) < 12 * ratio) continue;
      drawn[mark.kind] = x;
      ctx.strokeStyle = ctx.fillStyle = colour(mark.kind);
      ctx.fillText(SHAPES[mark.kind] ?? "•", x, top - 4 * ratio);
      if (!lines) continue;
      ctx.setLineDash(mark.kind === "crash" ? [] : [3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
    }
    ctx.restore();
  }

  read(plot) {
    const { idx, left } = plot.cursor;
    if (idx === null || idx === undefined || left < 0) { this.readout.textContent = ""; return; }
    const near = this.name !== "workers" ? [] : this.charts.marks
      .map((mark) => [Math.abs(plot.valToPos(mark.at, "x") - left), mark])
      .filter(([distance]) => distance < 8)
      .sort(([one], [other]) => one - other);
    if (near.length) {
      const [, mark] = near[0];
      this.readout.textContent = `${timeText(mark.at)}  ${SHAPES[mark.kind]} ${mark.text}, a step waited ${mark.stall}`;
    } else {
      this.readout.textContent = `${timeText(this.data[0][idx])}  ${short(this.data[1][idx])}`;
    }
  }
}
