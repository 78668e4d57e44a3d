// SPDX-License-Identifier: Apache-2.0
// Lines over time, by uPlot, with marks for what happened; colours, words for numbers, and the tip.
// Everything hangs on the one global object `gangline`. Text is only ever put in by textContent.
"use strict";
window.gangline = window.gangline || {};
(() => {
  // Okabe and Ito's colours: they can be told apart by everybody, on white and on black.
  const palette = {
    compute: "#0072b2",
    data: "#56b4e9",
    exchange: "#e69f00",
    wait: "#d55e00",
    update: "#009e73",
    other: "#8d99a6",
  };
  const cycle = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b3a500", "#8d99a6"];
  const dashes = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

  // The n-th line of a chart: eight colours, then the same ones dashed.
  const look = (n) => ({
    colour: cycle[n % cycle.length],
    dash: dashes[Math.floor(n / cycle.length) % dashes.length],
  });

  const digits = (value) =>
    Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));

  const format = {
    number: (value) => {
      if (value == null || Number.isNaN(value)) return "–";
      const size = Math.abs(value);
      if (size >= 1e9) return `${digits(value / 1e9)} G`;
      if (size >= 1e6) return `${digits(value / 1e6)} M`;
      if (size >= 1e4) return `${digits(value / 1e3)} k`;
      return digits(value);
    },
    percent: (value) => (value == null ? "–" : `${digits(value * 100)} %`),
    bytes: (value) => {
      if (value == null) return "–";
      const units = ["B", "kB", "MB", "GB", "TB", "PB"];
      let power = 0;
      for (let rest = Math.abs(value); rest >= 1000 && power < 5; rest /= 1000) power += 1;
      return `${digits(value / 1000 ** power)} ${units[power]}`;
    },
    seconds: (value) => {
      if (value == null) return "–";
      const size = Math.abs(value);
      if (size >= 7200) return `${digits(value / 3600)} h`;
      if (size >= 120) return `${digits(value / 60)} min`;
      if (size >= 1 || value === 0) return `${digits(value)} s`;
      if (size >= 1e-3) return `${digits(value * 1e3)} ms`;
      return `${digits(value * 1e6)} µs`;
    },
    // A moment of the run; `span` is what is shown at once, and says how exact it must be.
    moment: (value, span) => {
      if (value == null) return "–";
      const places = Math.min(6, Math.max(0, Math.ceil(2 - Math.log10(Math.max(span, 1e-6)))));
      if (Math.abs(value) < 120) return `${value.toFixed(places)} s`;
      const whole = Math.floor(value);
      const two = (number) => String(number).padStart(2, "0");
      const rest = (value - whole).toFixed(places).slice(1);
      const clock = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}${rest}`;
      const hours = Math.floor(whole / 3600);
      return hours ? `${hours}:${clock}` : clock;
    },
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // An element with text in it, never HTML.
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text != null) element.textContent = text;
    return element;
  };

  // The one tip of the page, beside the pointer.
  const tip = {
    element: null,
    show(text, x, y) {
      if (!tip.element) {
        tip.element = document.body.appendChild(make("div", "tip"));
        tip.element.setAttribute("role", "status");
      }
      const style = tip.element.style;
      tip.element.textContent = text;
      style.display = "block";
      const box = tip.element.getBoundingClientRect();
      style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
      style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
    },
    hide() {
      if (tip.element) tip.element.style.display = "none";
    },
  };

  // Charts are drawn anew when the colours change.
  const redrawn = new Set();
  const repaint = () => redrawn.forEach((draw) => draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  const isDark = () => {
    const asked = document.documentElement.dataset.theme;
    return asked ? asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const themeSwitch = () => {
    const button = make("button", "theme", "light / dark");
    button.type = "button";
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = isDark() ? "light" : "dark";
      repaint();
    });
    return button;
  };

  // What is drawn of stacked series: the upper edge of each, over those before it.
  const edges = (series) => {
    const sums = [];
    return series.map((one) =>
      Array.from(one.values, (value, place) => (sums[place] = (sums[place] || 0) + (value || 0)))
    );
  };

  // Typed arrays say "nothing" by NaN, and uPlot wants null.
  const gaps = (values) => {
    for (const value of values) if (Number.isNaN(value)) return Array.from(values, (one) => (Number.isNaN(one) ? null : one));
    return values;
  };

  const columnsOf = (options) => {
    const values = options.stacked
      ? edges(options.series).reverse() // the highest first: the others are drawn over it
      : options.series.map((one) => gaps(one.values));
    return [options.x, ...values];
  };

  // Vertical lines where something happened; what it was is said when the pointer is near.
  const markPlugin = (state) => ({
    hooks: {
      draw: (plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        ctx.strokeStyle = ctx.fillStyle = colour("--faint");
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash([3, 4]);
        for (const mark of state.options.marks || []) {
          const x = plot.valToPos(mark.x, "x", true);
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          ctx.beginPath();
          const side = 4 * devicePixelRatio;
          ctx.moveTo(x - side, bbox.top);
          ctx.lineTo(x + side, bbox.top);
          ctx.lineTo(x, bbox.top + 1.5 * side);
          ctx.fill();
        }
        ctx.restore();
      },
      setCursor: (plot) => {
        const { left } = plot.cursor;
        const near = left < 0 ? [] : marksNear(state.options.marks, (mark) => plot.valToPos(mark.x, "x") - left);
        if (near.length) {
          const box = plot.over.getBoundingClientRect();
          tip.show(describeMarks(near), box.left + left, box.top + 10);
        } else tip.hide();
      },
    },
  });

  // The marks within a few pixels; `distance` says how far one is.
  const marksNear = (marks, distance) => (marks || []).filter((mark) => Math.abs(distance(mark)) <= 5).slice(0, 4);
  const describeMarks = (marks) =>
    marks.map((mark) => (mark.text ? `${mark.label}\n${mark.text}` : mark.label)).join("\n\n");

  const axis = (values) => ({
    stroke: () => colour("--faint"),
    grid: { stroke: () => colour("--rule"), width: 1 },
    ticks: { stroke: () => colour("--rule"), width: 1 },
    font: "12px system-ui, sans-serif",
    values,
  });

  const seriesOf = (state) => {
    const { options, show } = state;
    const drawn = options.series.map((one, place) => {
      const own = look(place);
      const stroke = one.colour || own.colour;
      return {
        label: one.label,
        stroke,
        width: options.stacked ? 1 : 1.5,
        dash: one.dash || (one.colour || options.stacked ? [] : own.dash),
        fill: options.stacked ? stroke : undefined,
        spanGaps: true,
        paths: options.stepped ? uPlot.paths.stepped({ align: -1 }) : undefined,
        points: { show: options.x.length < 2 || Boolean(one.points), size: 4 },
        value: (plot, _, __, index) => (index == null ? "–" : show(state.options.series[place].values[index])),
      };
    });
    return options.stacked ? drawn.reverse() : drawn;
  };

  // Arrows move the cursor, + and - zoom around it, 0 shows everything.
  const steer = (plot, span, event) => {
    const { min, max } = plot.scales.x;
    const middle = plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : (min + max) / 2;
    const zoom = (factor) =>
      plot.setScale("x", { min: middle - (middle - min) * factor, max: middle + (max - middle) * factor });
    const move = (by) => {
      const left = Math.min(plot.over.clientWidth, Math.max(0, (plot.cursor.left < 0 ? 0 : plot.cursor.left) + by));
      plot.setCursor({ left, top: plot.over.clientHeight / 2 });
    };
    const keys = {
      ArrowLeft: () => move(-8),
      ArrowRight: () => move(8),
      "+": () => zoom(0.5),
      "-": () => zoom(2),
      0: () => (span ? plot.setScale("x", { min: span[0], max: span[1] }) : plot.setData(plot.data)),
      Escape: () => plot.setCursor({ left: -10, top: -10 }),
    };
    if (keys[event.key]) {
      keys[event.key]();
      event.preventDefault();
    }
  };

  const build = (state) => {
    const { options, place } = state;
    const xOf = options.xFormat || ((value, span) => format.moment(value, span));
    state.show = options.format || ((value) => format.number(value) + (options.unit && value != null ? ` ${options.unit}` : ""));
    const x = axis((plot, splits) => splits.map((one) => xOf(one, plot.scales.x.max - plot.scales.x.min)));
    const y = axis((_, splits) => splits.map((one) => (options.format || format.number)(one)));
    const floor = options.floor === undefined ? 0 : options.floor;
    return new uPlot(
      {
        width: Math.max(200, place.clientWidth),
        height: options.height || 220,
        legend: { live: true },
        cursor: { drag: { x: true, y: false } },
        scales: {
          x: { time: false },
          y: { range: (_, low, high) => rangeOf(floor, options.ceiling, low, high) },
        },
        axes: [{ ...x, space: 80 }, { ...y, size: 62 }],
        series: [{ label: options.xLabel || "time", value: (plot, value) => (value == null ? "–" : xOf(value, plot.scales.x.max - plot.scales.x.min)) }, ...seriesOf(state)],
        plugins: [markPlugin(state)],
      },
      columnsOf(options),
      place
    );
  };

  // From the floor (or the lowest value, where it is null) to a little over the highest.
  const rangeOf = (floor, ceiling, low, high) => {
    const top = ceiling ?? (high ?? 1);
    const bottom = floor === null ? (low ?? 0) : Math.min(floor, low ?? 0);
    const room = (top - bottom || Math.abs(top) || 1) * 0.06;
    return [floor === null ? bottom - room : bottom, ceiling ?? top + room];
  };

  // Draws lines into `element`:
  //   x         ascending numbers, seconds of the run unless `xFormat` says how to write them
  //   series    [{label, values, colour, dash}], as many values as x; null where there is none
  //   unit, format, floor (0; null: the lowest value), ceiling, height, stepped, stacked, title, xLabel
  //   span      [from, to]: what is shown of x at first, if not all of it
  //   marks     [{x, label, text}]
  // Returns {plot, options, update(changes), destroy()}.
  const lines = (element, options) => {
    element.classList.add("chart");
    element.replaceChildren();
    if (options.title) element.append(make("p", "title", options.title));
    const place = element.appendChild(make("div"));
    place.tabIndex = 0;
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `chart: ${options.title || options.series.map((one) => one.label).join(", ")}; arrow keys read it, + and - zoom, 0 shows all`);
    const state = { options, place };
    const chart = { plot: build(state), options };
    if (options.span) chart.plot.setScale("x", { min: options.span[0], max: options.span[1] });
    const draw = () => chart.plot.redraw();
    const sizes = new ResizeObserver(() => {
      if (place.clientWidth && place.clientWidth !== chart.plot.width) {
        chart.plot.setSize({ width: place.clientWidth, height: options.height || 220 });
      }
    });
    sizes.observe(place);
    place.addEventListener("keydown", (event) => steer(chart.plot, options.span, event));
    place.addEventListener("pointerleave", tip.hide);
    redrawn.add(draw);
    chart.update = (changes) => {
      const before = state.options.series.map((one) => one.label).join("\n");
      Object.assign(state.options, changes);
      if (state.options.series.map((one) => one.label).join("\n") === before) {
        chart.plot.setData(columnsOf(state.options));
      } else {
        chart.plot.destroy();
        chart.plot = build(state);
      }
    };
    chart.destroy = () => {
      sizes.disconnect();
      redrawn.delete(draw);
      chart.plot.destroy();
      element.replaceChildren();
    };
    element.chart = chart;
    return chart;
  };

  Object.assign(gangline, { palette, look, format, colour, make, tip, themeSwitch, redrawn, lines, marksNear, describeMarks });
})();
