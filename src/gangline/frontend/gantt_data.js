// SPDX-License-Identifier: Apache-2.0
// The numbers behind the Gantt chart: sums at every level, and steps that are found by their time.
"use strict";
(() => {
  const { format } = gangline;
  const SPANS = ["data", "compute", "wait", "exchange", "update"]; // in the order of time
  const US = 1e-6;
  const MOST_DRAWN = 20000;

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

  class GanttData {
    constructor(model) {
      this.model = model;
      this.levels = model.bins ? pyramidOf(model) : [];
      this.starts = model.detail ? startsOf(model.detail.row, model.rows.length) : null;
      this.units = this.unitIndex(model);
    }

    // The units of a step, by row and step.
    unitIndex({ units }) {
      const index = new Map();
      if (!units) return index;
      for (let place = 0; place < units.row.length; place += 1) {
        const key = `${units.row[place]}/${units.step[place]}`;
        if (!index.has(key)) index.set(key, []);
        index.get(key).push(place);
      }
      return index;
    }

    // The level whose spans are nearest to a pixel, and not wider.
    levelFor(secondsPerPixel) {
      const wanted = Math.floor(Math.log2(Math.max(1, secondsPerPixel / this.model.width)));
      const level = Math.min(wanted, this.levels.length - 1);
      return { ...this.levels[level], width: this.model.width * 2 ** level };
    }

    // The records of a row that are in view, as places in the columns; those of all rows at once.
    inView({ begin, end }) {
      const { detail, rows } = this.model;
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

    durationOf(place) {
      const { detail } = this.model;
      return SPANS.reduce((sum, kind) => sum + detail[kind][place], 0) * US;
    }

    unitsOf(place) {
      const { detail } = this.model;
      return this.units.get(`${detail.row[place]}/${detail.step[place]}`) || [];
    }

    // What is at a place of the chart, as numbers: a step in full, or sums over a span of time.
    look(row, t, secondsPerPixel) {
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
      const level = this.levelFor(secondsPerPixel);
      const bin = Math.floor(t / level.width);
      const parts = {};
      kinds.forEach((kind, lane) => {
        parts[kind] = bin < level.bins ? level.cells[(row * kinds.length + lane) * level.bins + bin] / 255 : 0;
      });
      return { begin: bin * level.width, width: level.width, parts };
    }

    // The units that were exchanged at a moment of a step, in words.
    unitAt(found, t) {
      const { units, detail } = this.model;
      const handed = found.end - this.durationOf(found.place) + detail.data[found.place] * US;
      const at = (t - handed) / US;
      return this.unitsOf(found.place)
        .filter((unit) => units.begin[unit] <= at && at <= units.end[unit])
        .map((unit) => `unit ${units.unit[unit]}: ready after ${format.seconds(units.ready[unit] * US)}, exchanged in ${format.seconds((units.end[unit] - units.begin[unit]) * US)}`);
    }
  }

  Object.assign(gangline, { GanttData, SPANS });
})();
