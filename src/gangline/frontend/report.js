// SPDX-License-Identifier: Apache-2.0
// Unpacks the numbers of the page, and draws its sections.
"use strict";
(() => {
  const { make, themeSwitch, sections, format, table } = gangline;
  const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };

  const unpack = async (text) => {
    const packed = Uint8Array.from(atob(text.trim()), (one) => one.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  };

  // Puts the arrays where the document refers to them.
  const filled = (value, buffer) => {
    if (value === null || typeof value !== "object") return value;
    if (Array.isArray(value)) return value.map((one) => filled(one, buffer));
    if (Array.isArray(value.$)) {
      const [kind, offset, length] = value.$;
      return new ARRAYS[kind](buffer, offset, length);
    }
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, filled(one, buffer)]));
  };

  const introduce = (element, run) => {
    element.append(make("p", run.status === "done" ? "" : "alarm", run.reason ? `${run.status}: ${run.reason}` : run.status));
    const began = run.began > 1e8 ? `${new Date(run.began * 1000).toLocaleString()}, ` : "";
    element.append(make("p", "faint", `${began}${format.seconds(run.length)}`));
    if (run.command.length) element.append(make("p", "faint", run.command.join(" ")));
    for (const warning of run.warnings) element.append(make("p", "alarm", `warning: ${warning}`));
  };

  const heading = (page, document_) => {
    const head = page.appendChild(make("header"));
    head.append(make("h1", "", document_.runs.map((run) => run.run || "a run").join(" · ")), themeSwitch());
  };

  // The figures of all runs with their ratios to the first.
  const comparison = (page, { runs, rows }) => {
    page.append(make("h2", "", "Compared with the first"));
    table(page, [
      { label: "", of: (row) => row.label, isText: true },
      ...runs.map((name, place) => ({ label: name, of: (row) => row.values[place], isText: true })),
    ], rows);
  };

  // Charts side by side can be compared by eye only on one scale.
  const scaleOf = (runs) => {
    const highest = (arrays) => {
      let high = 0;
      for (const array of arrays) for (const value of array || []) if (value > high) high = value;
      return high * 1.05 || undefined;
    };
    return {
      length: Math.max(...runs.map((run) => run.length)),
      throughput: highest(runs.flatMap((run) => [run.throughput.measured, run.throughput.parts])),
      steps: highest(runs.flatMap((run) => [...run.steps.measured.map((one) => one.values), run.steps.predicted])),
    };
  };

  const draw = (page, shown) => {
    page.replaceChildren();
    heading(page, shown);
    const isOne = shown.runs.length === 1;
    const scale = scaleOf(shown.runs);
    const row = () => (isOne ? page.appendChild(make("div")) : page.appendChild(make("div", "side")));
    const intro = row();
    for (const run of shown.runs) {
      Object.assign(run, { timed: [], scale });
      const place = intro.appendChild(make("div"));
      if (!isOne) place.append(make("b", "", run.run));
      introduce(place, run);
    }
    if (shown.comparison) comparison(page, shown.comparison);
    for (const { title, note, isFor, draw: paint } of sections) {
      if (!shown.runs.some(isFor)) continue;
      page.append(make("h2", "", title));
      if (note) page.append(make("p", "faint", note));
      const places = row();
      for (const run of shown.runs) {
        const place = places.appendChild(make("section"));
        place.dataset.section = title;
        if (isFor(run)) paint(place, run);
        else place.append(make("p", "faint", "nothing here"));
      }
    }
  };

  const start = async () => {
    const page = document.getElementById("report");
    const read = (id) => document.getElementById(id).textContent;
    const shown = filled(JSON.parse(read("document")), await unpack(read("columns")));
    draw(page, shown);
    gangline.shown = shown;
    document.documentElement.dataset.ready = "true";
  };
  start();
})();
