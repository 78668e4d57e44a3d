// SPDX-License-Identifier: Apache-2.0
// What all workers did, over time: from the whole run down to one unit of one step.
//
// Far out, each pixel is a stack of how its time was spent, out of sums that are halved level by level;
// near by, steps that are kept in full are drawn as they went. A frame costs as much as it has pixels,
// however long the run was.
"use strict";
(() => {
  const { palette, format, colour, make, GanttData, SPANS } = gangline;
  const STACK = ["compute", "data", "update", "exchange", "wait", "other"]; // from below
  const US = 1e-6;
  const HEAD = 34; // the axis, and the marks below it
  const LEAST_SPAN = 2e-6;
  const LEAST_WIDE = 8; // pixels of a step, or its parts cannot be told apart

  const rgba = (text) => {
    const value = parseInt(text.slice(1), 16);
    return (0xff << 24) | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16);
  };

  class Gantt {
    constructor(element, model, options) {
      this.model = model;
      this.options = options;
      this.marks = model.marks || [];
      this.data = new GanttData(model);
      this.view = { begin: 0, end: Math.max(model.length, LEAST_SPAN) };
      this.row = 0; // which the keys read
      this.inks = {};
      this.top = HEAD;
      this.build(element);
    }

    build(element) {
      element.classList.add("gantt", "chart");
      element.replaceChildren();
      const key = element.appendChild(make("div", "key"));
      for (const kind of STACK) this.keyEntry(key, palette[kind], kind === "other" ? "between steps" : kind);
      this.keyEntry(key, "var(--spare)", "spare");
      this.keyEntry(key, "var(--down)", "down");
      if ((this.model.absences || []).some((one) => one.why === "paused")) this.keyEntry(key, "var(--paused)", "paused");
      this.canvas = element.appendChild(make("canvas"));
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "img");
      this.canvas.setAttribute("aria-label", "what all workers did over time; + and - zoom, left and right move, up and down choose a worker, 0 shows all");
      const tools = element.appendChild(make("div", "tools"));
      for (const [label, name, act] of [
        ["+", "zoom in", () => this.zoomBy(0.5)],
        ["−", "zoom out", () => this.zoomBy(2)],
        ["←", "earlier", () => this.move(-0.25)],
        ["→", "later", () => this.move(0.25)],
        ["all", "show all", () => this.zoom(0, this.model.length)],
      ]) {
        const button = tools.appendChild(make("button", "", label));
        button.type = "button";
        button.setAttribute("aria-label", name);
        button.addEventListener("click", act);
      }
      this.place = tools.appendChild(make("span", "faint"));
      gangline.ganttHands(this);
      this.sizes = new ResizeObserver(() => this.resize());
      this.sizes.observe(this.canvas.parentElement);
      this.redraw = () => this.ask();
      gangline.redrawn.add(this.redraw);
      this.resize();
    }

    keyEntry(key, hue, label) {
      const entry = key.appendChild(make("span"));
      entry.appendChild(make("i")).style.background = hue;
      entry.append(label);
    }

    resize() {
      const width = this.canvas.parentElement.clientWidth;
      if (!width) return;
      const count = Math.max(1, this.model.rows.length);
      this.rowHeight = Math.max(count > 160 ? 1.25 : 4, Math.min(30, 560 / count));
      this.labels = this.rowHeight < 11 ? 8 : Math.min(130, width * 0.25);
      this.width = width;
      this.height = HEAD + this.rowHeight * count + 2;
      this.ratio = Math.min(2, devicePixelRatio || 1);
      this.canvas.width = Math.round(width * this.ratio);
      this.canvas.height = Math.round(this.height * this.ratio);
      this.canvas.style.height = `${this.height}px`;
      this.image = null;
      this.draw();
    }

    // One frame, soon; however often it is asked for.
    ask() {
      if (this.asked) return;
      this.asked = requestAnimationFrame(() => {
        this.asked = 0;
        this.draw();
      });
    }

    zoom(begin, end) {
      const longest = Math.max(this.model.length, LEAST_SPAN);
      const span = Math.min(longest, Math.max(LEAST_SPAN, end - begin));
      const first = Math.min(Math.max(0, begin), longest - span);
      this.view = { begin: first, end: first + span };
      this.ask();
      if (this.options.onView) this.options.onView(this.view.begin, this.view.end);
    }

    zoomBy(factor, at) {
      const { begin, end } = this.view;
      const centre = at ?? (begin + end) / 2;
      this.zoom(centre - (centre - begin) * factor, centre + (end - centre) * factor);
    }

    move(part) {
      const by = (this.view.end - this.view.begin) * part;
      this.zoom(this.view.begin + by, this.view.end + by);
    }

    xOf(t) {
      const { begin, end } = this.view;
      return this.labels + ((t - begin) / (end - begin)) * (this.width - this.labels);
    }

    timeAt(x) {
      const { begin, end } = this.view;
      return begin + ((x - this.labels) / (this.width - this.labels)) * (end - begin);
    }

    rowAt(y) {
      const row = Math.floor((y - HEAD) / this.rowHeight);
      return row >= 0 && row < this.model.rows.length ? row : -1;
    }

    // Where an event is, in the chart.
    pointOf(event) {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    }

    draw() {
      const context = this.canvas.getContext("2d");
      // Asked for once per frame: each time costs as much as drawing a step.
      for (const name of ["paper", "ink", "faint", "down", "spare", "paused"]) this.inks[name] = colour(`--${name}`);
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.fillStyle = this.inks.paper;
      context.fillRect(0, 0, this.canvas.width, this.canvas.height);
      if (this.data.levels.length) this.drawSums(context);
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.save();
      context.beginPath();
      context.rect(this.labels, 0, this.width - this.labels, this.height);
      context.clip();
      this.drawAbsences(context);
      this.drawSteps(context);
      this.drawMarks(context);
      context.restore();
      this.drawLabels(context);
      this.drawAxis(context);
      const { begin, end } = this.view;
      this.place.textContent = `${format.moment(begin, end - begin)} to ${format.moment(end, end - begin)}: ${format.seconds(end - begin)}`;
    }

    drawSums(context) {
      const left = Math.round(this.labels * this.ratio);
      const top = Math.round(HEAD * this.ratio);
      const [width, height] = [this.canvas.width - left, this.canvas.height - top];
      if (width < 1 || height < 1) return;
      if (!this.image) {
        this.image = context.createImageData(width, height);
        this.pixels = new Uint32Array(this.image.data.buffer);
      }
      this.pixels.fill(rgba(this.inks.paper));
      const { begin, end } = this.view;
      const level = this.data.levelFor((end - begin) / width);
      const columns = new Int32Array(width);
      for (let x = 0; x < width; x += 1) {
        const bin = Math.floor((begin + ((x + 0.5) / width) * (end - begin)) / level.width);
        columns[x] = bin < level.bins ? bin : -1;
      }
      for (let row = 0; row < this.model.rows.length; row += 1) this.fillRow(row, level, columns, width, height);
      context.putImageData(this.image, left, top);
    }

    // Line by line from below, so that memory is written in its order: each pixel of a line has the first
    // kind whose edge is above it.
    fillRow(row, level, columns, width, height) {
      const first = Math.round(row * this.rowHeight * this.ratio);
      const gap = this.rowHeight >= 8 ? Math.round(this.ratio) : 0;
      const last = Math.min(height, Math.round((row + 1) * this.rowHeight * this.ratio) - gap);
      const edges = this.edgesOf(row, level, columns, width, last - first);
      const inks = Int32Array.from([...STACK.map((kind) => palette[kind]), this.inks.paper], rgba);
      const kinds = new Uint8Array(width);
      const { pixels } = this;
      const count = STACK.length;
      for (let y = last - 1, high = 0; y >= first; y -= 1, high += 1) {
        for (let x = 0, at = y * width; x < width; x += 1, at += 1) {
          let kind = kinds[x];
          while (kind < count && edges[kind * width + x] <= high) kind += 1;
          kinds[x] = kind;
          pixels[at] = inks[kind];
        }
      }
    }

    // How high each kind reaches in each column of pixels, on top of those below it.
    edgesOf(row, level, columns, width, tall) {
      const { kinds } = this.model;
      const edges = new Uint16Array(STACK.length * width);
      const sums = new Uint16Array(width);
      for (let place = 0; place < STACK.length; place += 1) {
        const lane = (row * kinds.length + kinds.indexOf(STACK[place])) * level.bins;
        for (let x = 0; x < width; x += 1) {
          if (columns[x] >= 0) sums[x] += level.cells[lane + columns[x]];
          const high = ((sums[x] * tall + 127) / 255) | 0;
          edges[place * width + x] = high < tall ? high : tall;
        }
      }
      return edges;
    }

    drawAbsences(context) {
      for (const one of this.model.absences || []) {
        const [from, to] = [this.xOf(one.begin), this.xOf(one.end)];
        if (to < this.labels || from > this.width) continue;
        const y = HEAD + one.row * this.rowHeight;
        context.fillStyle = this.inks[one.why];
        const high = Math.max(1, this.rowHeight - 1);
        context.fillRect(from, one.why === "down" ? y : y + high * 0.3, Math.max(1, to - from), one.why === "down" ? high : high * 0.4);
      }
    }

    drawSteps(context) {
      if (!this.model.detail) return;
      const perSecond = (this.width - this.labels) / (this.view.end - this.view.begin);
      for (const [row, first, last] of this.data.inView(this.view)) {
        const y = HEAD + row * this.rowHeight;
        const high = Math.max(1, this.rowHeight - (this.rowHeight >= 8 ? 1 : 0));
        for (let place = first; place < last; place += 1) this.drawStep(context, place, y, high, perSecond);
      }
    }

    drawStep(context, place, y, high, perSecond) {
      const { detail } = this.model;
      const duration = this.data.durationOf(place);
      if (duration * perSecond < LEAST_WIDE) return;
      const begin = detail.end[place] - duration;
      let x = this.xOf(begin);
      if (x > this.width || x + duration * perSecond < this.labels) return;
      context.fillStyle = this.inks.paper;
      context.fillRect(x, y, duration * perSecond, high);
      const spots = {};
      for (const kind of SPANS) {
        const wide = detail[kind][place] * US * perSecond;
        spots[kind] = [x, wide];
        context.fillStyle = palette[kind];
        if (wide > 0.2) context.fillRect(x, y, wide, high);
        x += wide;
      }
      context.fillStyle = this.inks.paper;
      if (duration * perSecond > 6) context.fillRect(x - 1, y, 1, high); // where one step ends
      if (duration * perSecond > 120) this.drawUnits(context, place, begin, y, high, perSecond);
      const [at, wide] = spots.compute;
      if (wide > 60 && high > 11) {
        context.fillStyle = "#fff";
        context.font = "11px system-ui, sans-serif";
        context.fillText(`step ${detail.step[place]}`, Math.max(at, this.labels) + 4, y + Math.min(high - 3, 12));
      }
    }

    // Units are drawn below in the step's own bar; their times count from the end of the data part.
    drawUnits(context, place, begin, y, high, perSecond) {
      const { units, detail } = this.model;
      const handed = begin + detail.data[place] * US;
      for (const unit of this.data.unitsOf(place)) {
        const from = this.xOf(handed + units.begin[unit] * US);
        const wide = Math.max(1, (units.end[unit] - units.begin[unit]) * US * perSecond);
        context.fillStyle = units.unit[unit] % 2 ? "#f0e442" : "#cc79a7";
        context.fillRect(from, y + high * 0.6, wide, high * 0.4);
      }
    }

    drawMarks(context) {
      context.fillStyle = this.inks.ink;
      let before = -10;
      for (const mark of this.marks) {
        const x = this.xOf(mark.x);
        if (x < this.labels || x > this.width || x - before < 1) continue;
        before = x;
        context.globalAlpha = 0.35;
        context.fillRect(x, HEAD, 1, this.height - HEAD);
        context.globalAlpha = 1;
        context.beginPath();
        context.moveTo(x - 4, HEAD - 12);
        context.lineTo(x + 4, HEAD - 12);
        context.lineTo(x, HEAD - 4);
        context.fill();
      }
    }

    drawLabels(context) {
      if (this.rowHeight < 11) return;
      context.fillStyle = this.inks.ink;
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      this.model.rows.forEach((row, place) => {
        let text = row.label;
        while (text.length > 1 && context.measureText(text).width > this.labels - 8) text = `${text.slice(0, -2)}…`;
        context.fillText(text, 0, HEAD + (place + 0.5) * this.rowHeight);
      });
      context.textBaseline = "alphabetic";
    }

    drawAxis(context) {
      const { begin, end } = this.view;
      const wide = this.width - this.labels;
      const rough = ((end - begin) * 90) / wide;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
      context.fillStyle = this.inks.faint;
      context.font = "11px system-ui, sans-serif";
      for (let tick = Math.ceil(begin / step); tick * step <= end; tick += 1) {
        const x = this.xOf(tick * step);
        context.fillRect(x, 14, 1, 5);
        context.textAlign = x > this.width - 30 ? "right" : "center";
        context.fillText(format.moment(tick * step, step * 10), Math.max(x, this.labels + 16), 11);
      }
      context.textAlign = "left";
    }

    describe(row, t) {
      const name = this.model.rows[row].label;
      const span = this.view.end - this.view.begin;
      const away = (this.model.absences || []).find((one) => one.row === row && one.begin <= t && t < one.end);
      const found = this.data.look(row, t, span / (this.width - this.labels));
      const head = `${name}, at ${format.moment(t, span)}`;
      if (found && found.spent) {
        const parts = SPANS.map((kind) => `${kind} ${format.seconds(found.spent[kind])}`);
        const unit = this.data.unitAt(found, t);
        return [head, `step ${found.step}: ${found.samples} samples`, ...parts, ...unit].join("\n");
      }
      if (away) return `${head}\n${away.why === "spare" ? "a spare" : away.why} for ${format.seconds(away.end - away.begin)}`;
      if (!found) return head;
      const parts = STACK.filter((kind) => found.parts[kind] > 0).map((kind) => `${kind} ${format.percent(found.parts[kind])}`);
      return [head, `over ${format.seconds(found.width)}:`, ...(parts.length ? parts : ["no step"])].join("\n");
    }

    destroy() {
      this.sizes.disconnect();
      gangline.redrawn.delete(this.redraw);
      cancelAnimationFrame(this.asked);
      this.canvas.parentElement.replaceChildren();
    }
  }

  // Draws {length, width, bins, kinds, rows: [{label}], cells, detail, units, absences, marks}; what is
  // left out is not drawn. `onView(begin, end)` is called when what is shown changes.
  gangline.gantt = (element, model, options = {}) => {
    const chart = new Gantt(element, model, options);
    element.chart = chart;
    return chart;
  };
})();
