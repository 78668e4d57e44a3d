// SPDX-License-Identifier: Apache-2.0
// What all workers did, over time: from the whole run down to one unit of one step.
//
// Far out, each pixel is a stack of how its time was spent, out of sums that are halved level by level;
// near by, steps that are kept in full are drawn as they went. A frame costs as much as it has pixels,
// however long the run was.
"use strict";
(() => {
  const { palette, format, colour, make, tip, marksNear, describeMarks } = gangline;
  const STACK = ["compute", "data", "update", "exchange", "wait", "other"]; // from below
  const SPANS = ["data", "compute", "wait", "exchange", "update"]; // in the order of time
  const US = 1e-6;
  const HEAD = 34; // the axis, and the marks below it
  const MOST_DRAWN = 20000;
  const LEAST_SPAN = 2e-6;

  const rgba = (text) => {
    const value = parseInt(text.slice(1), 16);
    return (0xff << 24) | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16);
  };

  // Each level has half as many spans of time as the one below; sums are bytes, 255: all of the time.
  const pyramidOf = (model) => {
    const lanes = model.rows.length * model.kinds.length;
    const levels = [{ bins: model.bins, cells: model.cells }];
    while (levels[levels.length - 1].bins > 64) {
      const { bins, cells } = levels[levels.length - 1];
      const half = Math.ceil(bins / 2);
      const next = new Uint8Array(lanes * half);
      for (let lane = 0; lane < lanes; lane += 1) {
        for (let bin = 0; bin < half; bin += 1) {
          const left = cells[lane * bins + 2 * bin];
          const right = 2 * bin + 1 < bins ? cells[lane * bins + 2 * bin + 1] : 0;
          next[lane * half + bin] = (left + right + 1) >> 1;
        }
      }
      levels.push({ bins: half, cells: next });
    }
    return levels;
  };

  // Where each row's records begin, in records that are sorted by row.
  const startsOf = (rows, count) => {
    const starts = new Uint32Array(count + 1);
    for (const row of rows) starts[row + 1] += 1;
    for (let row = 0; row < count; row += 1) starts[row + 1] += starts[row];
    return starts;
  };

  // The first place from `low` up to `high` whose value is not below `least`.
  const search = (values, low, high, least) => {
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < least) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  class Gantt {
    constructor(element, model, options) {
      this.model = model;
      this.options = options;
      this.marks = model.marks || [];
      this.levels = model.bins ? pyramidOf(model) : [];
      const detail = model.detail;
      this.starts = detail ? startsOf(detail.row, model.rows.length) : null;
      this.units = this.unitIndex(model.units);
      this.view = { begin: 0, end: Math.max(model.length, LEAST_SPAN) };
      this.cursor = { row: 0, at: null };
      this.build(element);
    }

    // The units of a step, by row and step.
    unitIndex(units) {
      const index = new Map();
      if (!units) return index;
      for (let place = 0; place < units.row.length; place += 1) {
        const key = `${units.row[place]}/${units.step[place]}`;
        if (!index.has(key)) index.set(key, []);
        index.get(key).push(place);
      }
      return index;
    }

    build(element) {
      element.classList.add("gantt", "chart");
      element.replaceChildren();
      const key = element.appendChild(make("div", "key"));
      for (const kind of STACK) this.keyEntry(key, palette[kind], kind === "other" ? "between steps" : kind);
      this.keyEntry(key, colour("--spare"), "spare");
      this.keyEntry(key, colour("--down"), "down");
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
      this.listen();
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

    draw() {
      const context = this.canvas.getContext("2d");
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.fillStyle = colour("--paper");
      context.fillRect(0, 0, this.canvas.width, this.canvas.height);
      if (this.levels.length) this.drawSums(context);
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

    // The level whose spans are nearest to a pixel, and not wider.
    levelFor(secondsPerPixel) {
      const wanted = Math.floor(Math.log2(Math.max(1, secondsPerPixel / this.model.width)));
      const level = Math.min(wanted, this.levels.length - 1);
      return { ...this.levels[level], width: this.model.width * 2 ** level };
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
      this.pixels.fill(rgba(colour("--paper")));
      const { begin, end } = this.view;
      const level = this.levelFor((end - begin) / width);
      const columns = new Int32Array(width);
      for (let x = 0; x < width; x += 1) {
        const bin = Math.floor((begin + ((x + 0.5) / width) * (end - begin)) / level.width);
        columns[x] = bin < level.bins ? bin : -1;
      }
      for (let row = 0; row < this.model.rows.length; row += 1) this.fillRow(row, level, columns, width, height);
      context.putImageData(this.image, left, top);
    }

    fillRow(row, level, columns, width, height) {
      const { kinds } = this.model;
      const first = Math.round(row * this.rowHeight * this.ratio);
      const gap = this.rowHeight >= 8 ? Math.round(this.ratio) : 0;
      const last = Math.min(height, Math.round((row + 1) * this.rowHeight * this.ratio) - gap);
      const tall = last - first;
      for (let place = 0, below = new Uint16Array(width); place < STACK.length; place += 1) {
        const kind = kinds.indexOf(STACK[place]);
        const lane = (row * kinds.length + kind) * level.bins;
        const ink = rgba(palette[STACK[place]]);
        for (let x = 0; x < width; x += 1) {
          const bin = columns[x];
          const value = bin < 0 ? 0 : level.cells[lane + bin];
          if (!value) continue;
          const from = last - Math.round((below[x] * tall) / 255);
          below[x] = Math.min(255, below[x] + value);
          const to = last - Math.round((below[x] * tall) / 255);
          for (let y = from - 1; y >= to; y -= 1) this.pixels[y * width + x] = ink;
        }
      }
    }

    drawAbsences(context) {
      for (const one of this.model.absences || []) {
        const [from, to] = [this.xOf(one.begin), this.xOf(one.end)];
        if (to < this.labels || from > this.width) continue;
        const y = HEAD + one.row * this.rowHeight;
        context.fillStyle = colour(one.why === "down" ? "--down" : "--spare");
        const high = Math.max(1, this.rowHeight - 1);
        context.fillRect(from, one.why === "down" ? y : y + high * 0.3, Math.max(1, to - from), one.why === "down" ? high : high * 0.4);
      }
    }

    // The records of a row that are in view, as places in the columns; those of all rows at once.
    inView() {
      const { detail, rows } = this.model;
      const { begin, end } = this.view;
      const found = [];
      let count = 0;
      for (let row = 0; row < rows.length; row += 1) {
        const first = search(detail.end, this.starts[row], this.starts[row + 1], begin);
        // One more at the end: a step that began before the view's end.
        const last = Math.min(this.starts[row + 1], search(detail.end, first, this.starts[row + 1], end) + 1);
        found.push([row, first, last]);
        count += last - first;
      }
      return count > MOST_DRAWN ? [] : found;
    }

    drawSteps(context) {
      if (!this.model.detail) return;
      const perSecond = (this.width - this.labels) / (this.view.end - this.view.begin);
      for (const [row, first, last] of this.inView()) {
        const y = HEAD + row * this.rowHeight;
        const high = Math.max(1, this.rowHeight - (this.rowHeight >= 8 ? 1 : 0));
        for (let place = first; place < last; place += 1) this.drawStep(context, place, y, high, perSecond);
      }
    }

    durationOf(place) {
      const { detail } = this.model;
      return SPANS.reduce((sum, kind) => sum + detail[kind][place], 0) * US;
    }

    drawStep(context, place, y, high, perSecond) {
      const { detail } = this.model;
      const duration = this.durationOf(place);
      if (duration * perSecond < 3) return;
      const begin = detail.end[place] - duration;
      let x = this.xOf(begin);
      if (x > this.width || x + duration * perSecond < this.labels) return;
      context.fillStyle = colour("--paper");
      context.fillRect(x, y, duration * perSecond, high);
      const spots = {};
      for (const kind of SPANS) {
        const wide = detail[kind][place] * US * perSecond;
        spots[kind] = [x, wide];
        context.fillStyle = palette[kind];
        if (wide > 0.2) context.fillRect(x, y, wide, high);
        x += wide;
      }
      context.fillStyle = colour("--paper");
      if (duration * perSecond > 6) context.fillRect(x - 1, y, 1, high); // where one step ends
      if (duration * perSecond > 120) this.drawUnits(context, place, begin, y, high, perSecond);
      const [at, wide] = spots.compute;
      if (wide > 60 && high > 11) {
        context.fillStyle = "#fff";
        context.font = "11px system-ui, sans-serif";
        context.fillText(`step ${detail.step[place]}`, Math.max(at, this.labels) + 4, y + Math.min(high - 3, 12));
      }
    }

    unitsOf(place) {
      const { detail } = this.model;
      return this.units.get(`${detail.row[place]}/${detail.step[place]}`) || [];
    }

    // Units are drawn below in the step's own bar; their times count from the end of the data part.
    drawUnits(context, place, begin, y, high, perSecond) {
      const { units, detail } = this.model;
      const handed = begin + detail.data[place] * US;
      for (const unit of this.unitsOf(place)) {
        const from = this.xOf(handed + units.begin[unit] * US);
        const wide = Math.max(1, (units.end[unit] - units.begin[unit]) * US * perSecond);
        context.fillStyle = units.unit[unit] % 2 ? "#f0e442" : "#cc79a7";
        context.fillRect(from, y + high * 0.6, wide, high * 0.4);
      }
    }

    drawMarks(context) {
      context.fillStyle = context.strokeStyle = colour("--ink");
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
      context.fillStyle = colour("--ink");
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
      context.fillStyle = colour("--faint");
      context.font = "11px system-ui, sans-serif";
      for (let tick = Math.ceil(begin / step); tick * step <= end; tick += 1) {
        const x = this.xOf(tick * step);
        context.fillRect(x, 14, 1, 5);
        context.textAlign = x > this.width - 30 ? "right" : "center";
        context.fillText(format.moment(tick * step, step * 10), Math.max(x, this.labels + 16), 11);
      }
      context.textAlign = "left";
    }

    // What is at a place of the chart, as numbers: a step in full, or sums over a span of time.
    look(row, t) {
      const { detail, kinds } = this.model;
      if (detail) {
        const place = search(detail.end, this.starts[row], this.starts[row + 1], t);
        if (place < this.starts[row + 1] && detail.end[place] - this.durationOf(place) <= t) {
          const spent = {};
          for (const kind of SPANS) spent[kind] = detail[kind][place] * US;
          return { place, step: detail.step[place], samples: detail.samples[place], end: detail.end[place], spent };
        }
      }
      if (!this.levels.length) return null;
      const level = this.levelFor((this.view.end - this.view.begin) / (this.width - this.labels));
      const bin = Math.floor(t / level.width);
      const parts = {};
      kinds.forEach((kind, lane) => {
        parts[kind] = bin < level.bins ? level.cells[(row * kinds.length + lane) * level.bins + bin] / 255 : 0;
      });
      return { begin: bin * level.width, width: level.width, parts };
    }

    describe(row, t) {
      const name = this.model.rows[row].label;
      const span = this.view.end - this.view.begin;
      const away = (this.model.absences || []).find((one) => one.row === row && one.begin <= t && t < one.end);
      const found = this.look(row, t);
      const head = `${name}, at ${format.moment(t, span)}`;
      if (found && found.spent) {
        const parts = SPANS.map((kind) => `${kind} ${format.seconds(found.spent[kind])}`);
        const unit = this.unitAt(found, t);
        return [head, `step ${found.step}: ${found.samples} samples`, ...parts, ...unit].join("\n");
      }
      if (away) return `${head}\n${away.why === "down" ? "down" : "a spare"} for ${format.seconds(away.end - away.begin)}`;
      if (!found) return head;
      const parts = STACK.filter((kind) => found.parts[kind] > 0).map((kind) => `${kind} ${format.percent(found.parts[kind])}`);
      return [head, `over ${format.seconds(found.width)}:`, ...(parts.length ? parts : ["no step"])].join("\n");
    }

    unitAt(found, t) {
      const { units, detail } = this.model;
      const handed = found.end - this.durationOf(found.place) + detail.data[found.place] * US;
      const at = (t - handed) / US;
      return this.unitsOf(found.place)
        .filter((unit) => units.begin[unit] <= at && at <= units.end[unit])
        .map((unit) => `unit ${units.unit[unit]}: ready after ${format.seconds(units.ready[unit] * US)}, exchanged in ${format.seconds((units.end[unit] - units.begin[unit]) * US)}`);
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    }

    hover(event) {
      const [x, y] = this.point(event);
      const near = marksNear(this.marks, (mark) => this.xOf(mark.x) - x);
      const row = this.rowAt(y);
      if (near.length && y < HEAD) tip.show(describeMarks(near), event.clientX, event.clientY);
      else if (row >= 0 && x >= this.labels) tip.show(this.describe(row, this.timeAt(x)), event.clientX, event.clientY);
      else tip.hide();
    }

    listen() {
      const fingers = new Map();
      let pressed = null;
      this.canvas.addEventListener("wheel", (event) => {
        const isOurs = event.ctrlKey || event.metaKey || document.activeElement === this.canvas;
        if (!isOurs) return; // the page scrolls on
        event.preventDefault();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / this.width);
        else this.zoomBy(1.0018 ** event.deltaY, this.timeAt(this.point(event)[0]));
      }, { passive: false });
      this.canvas.addEventListener("pointerdown", (event) => {
        this.canvas.setPointerCapture(event.pointerId);
        this.canvas.focus({ preventScroll: true });
        fingers.set(event.pointerId, this.point(event)[0]);
        pressed = { x: this.point(event)[0], view: this.view, isMove: event.pointerType === "touch" || event.shiftKey };
      });
      this.canvas.addEventListener("pointermove", (event) => {
        const x = this.point(event)[0];
        if (!pressed) this.hover(event);
        else if (fingers.size === 2) this.pinch(fingers, event.pointerId, x);
        else if (pressed.isMove) {
          const by = this.timeAt(pressed.x) - this.timeAt(x);
          this.zoom(this.view.begin + by, this.view.end + by);
          pressed.x = x;
        } else this.drawChoice(pressed.x, x);
        if (fingers.has(event.pointerId)) fingers.set(event.pointerId, x);
      });
      const release = (event) => {
        const x = this.point(event)[0];
        fingers.delete(event.pointerId);
        if (pressed && !pressed.isMove && Math.abs(x - pressed.x) > 4) {
          const [one, other] = [this.timeAt(pressed.x), this.timeAt(x)];
          this.zoom(Math.min(one, other), Math.max(one, other));
        }
        if (!fingers.size) pressed = null;
      };
      this.canvas.addEventListener("pointerup", release);
      this.canvas.addEventListener("pointercancel", () => { fingers.clear(); pressed = null; });
      this.canvas.addEventListener("pointerleave", tip.hide);
      this.canvas.addEventListener("dblclick", () => this.zoom(0, this.model.length));
      this.canvas.addEventListener("keydown", (event) => this.steer(event));
    }

    // Two fingers: what is under them stays under them.
    pinch(fingers, moved, x) {
      const still = [...fingers].find(([id]) => id !== moved)[1];
      const before = Math.abs(fingers.get(moved) - still);
      const now = Math.abs(x - still);
      if (before > 4 && now > 4) this.zoomBy(before / now, this.timeAt(still));
    }

    drawChoice(from, to) {
      this.draw();
      const context = this.canvas.getContext("2d");
      context.fillStyle = colour("--accent");
      context.globalAlpha = 0.2;
      context.fillRect(Math.min(from, to), HEAD, Math.abs(to - from), this.height - HEAD);
      context.globalAlpha = 1;
    }

    steer(event) {
      const choose = (by) => {
        this.cursor.row = Math.min(this.model.rows.length - 1, Math.max(0, this.cursor.row + by));
        const t = (this.view.begin + this.view.end) / 2;
        const box = this.canvas.getBoundingClientRect();
        tip.show(this.describe(this.cursor.row, t), box.left + this.xOf(t), box.top + HEAD + this.cursor.row * this.rowHeight);
      };
      const keys = {
        "+": () => this.zoomBy(0.5),
        "=": () => this.zoomBy(0.5),
        "-": () => this.zoomBy(2),
        ArrowLeft: () => this.move(-0.2),
        ArrowRight: () => this.move(0.2),
        ArrowUp: () => choose(-1),
        ArrowDown: () => choose(1),
        0: () => this.zoom(0, this.model.length),
        Escape: () => tip.hide(),
      };
      if (keys[event.key]) {
        keys[event.key]();
        event.preventDefault();
      }
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
