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
  const comparison = (page, rows) => {
    page.append(make("h2", "", "Compared with the first"));
    const names = rows.length ? rows[0].values.map((_, place) => place) : [];
    table(page, [
      { label: "", of: (row) => row.label, isText: true },
      ...names.map((place) => ({ label: rows.runs[place], of: (row) => row.values[place], isText: true })),
    ], rows);
  };

  const draw = (page, shown) => {
    page.replaceChildren();
    heading(page, shown);
    const isOne = shown.runs.length === 1;
    const row = () => (isOne ? page.appendChild(make("div")) : page.appendChild(make("div", "side")));
    const intro = row();
    for (const run of shown.runs) {
      run.timed = [];
      const place = intro.appendChild(make("div"));
      if (!isOne) place.append(make("b", "", run.run));
      introduce(place, run);
    }
    if (shown.comparison) comparison(page, Object.assign(shown.comparison.rows, { runs: shown.comparison.runs }));
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
