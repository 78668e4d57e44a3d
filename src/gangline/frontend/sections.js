// SPDX-License-Identifier: Apache-2.0
// The parts of a run's page, one after the other; a comparison shows each for all runs side by side.
"use strict";
(() => {
  const { make, lines, gantt, structure, format, palette } = gangline;
  const MOST_LISTED = 6; // of the bill, at first
  const MOST_MARKED = 40; // merges; more would hide the lines

  const table = (element, columns, rows) => {
    const place = element.appendChild(make("div", "scroll")).appendChild(make("table"));
    const head = place.appendChild(make("thead")).appendChild(make("tr"));
    for (const { label, isText } of columns) head.appendChild(make("th", isText ? "text" : "", label));
    const body = place.appendChild(make("tbody"));
    for (const row of rows) {
      const line = body.appendChild(make("tr"));
      columns.forEach(({ of, isText }) => line.appendChild(make("td", isText ? "text" : "", of(row))));
    }
    return place;
  };

  const marksOf = (run) => run.marks.filter((mark) => mark.kind !== "merge" && mark.kind !== "plan").map(withNumbers);

  // A mark whose text has the numbers, too.
  const withNumbers = (mark) => {
    const numbers = Object.entries(mark.numbers || {}).map(([name, value]) => `${name} ${format.number(value)}`);
    const took = mark.took_s == null ? [] : [`took ${format.seconds(mark.took_s)}`];
    const text = [mark.text, [...took, ...numbers].join(", ")].filter(Boolean).join("\n");
    return { x: mark.x, label: mark.label, text };
  };

  // Lines over the time of the run, which follow what the Gantt chart shows.
  const timed = (run, element, options) => {
    const chart = lines(element, { ...options, span: [0, run.scale.length] });
    run.timed.push(chart);
    return chart;
  };

  // Text with commands in it, which stand between backticks.
  const withCode = (element, text) => {
    text.split("`").forEach((part, place) => element.append(place % 2 ? make("code", "", part) : part));
    return element;
  };

  const bill = (element, run) => {
    element.append(make("p", "", run.bill.text));
    const bar = element.appendChild(make("div", "bar"));
    const key = element.appendChild(make("div", "key"));
    const total = Object.values(run.spent).reduce((sum, one) => sum + one, 0) || 1;
    for (const [kind, value] of Object.entries(run.spent)) {
      if (value / total < 5e-4) continue;
      const part = bar.appendChild(make("i"));
      part.style.background = palette[kind];
      part.style.flexGrow = value / total;
      part.title = `${kind}: ${format.percent(value / total)} of the time in steps`;
      const entry = key.appendChild(make("span"));
      entry.appendChild(make("i")).style.background = palette[kind];
      entry.append(`${kind === "other" ? "between steps" : kind} ${format.percent(value / total)}`);
    }
    const list = (home, items, first) => {
      const place = home.appendChild(make("ol", "bill"));
      place.start = first;
      for (const item of items) {
        const entry = place.appendChild(make("li"));
        entry.append(make("b", "", item.text), withCode(make("span", "advice"), item.advice));
      }
    };
    list(element, run.bill.items.slice(0, MOST_LISTED), 1);
    const rest = run.bill.items.slice(MOST_LISTED);
    if (rest.length) {
      const more = element.appendChild(make("details"));
      more.append(make("summary", "", `${rest.length} more`));
      list(more, rest, MOST_LISTED + 1);
    }
    if (!run.bill.items.length) element.append(make("p", "faint", "Nothing else cost more than half a percent."));
  };

  const figures = (element, run) => {
    const place = element.appendChild(make("div", "figures"));
    for (const { label, value } of run.figures) {
      const figure = place.appendChild(make("div"));
      figure.append(make("b", "", value), make("span", "", label));
    }
  };

  // The other charts show the same time: those that can be seen at once, the rest when it rests.
  const follower = (run) => {
    const asked = { frame: 0, rest: 0 };
    const isSeen = ({ plot }) => {
      const box = plot.root.getBoundingClientRect();
      return box.bottom > 0 && box.top < innerHeight;
    };
    return (min, max) => {
      cancelAnimationFrame(asked.frame);
      clearTimeout(asked.rest);
      const show = (charts) => charts.forEach((chart) => chart.plot.setScale("x", { min, max }));
      asked.frame = requestAnimationFrame(() => show(run.timed.filter(isSeen)));
      asked.rest = setTimeout(() => show(run.timed), 150);
    };
  };

  const timeline = (element, run) => {
    const model = { ...run.gantt, marks: marksOf(run) };
    gantt(element, model, { onView: follower(run) });
    if (run.gantt.is_cut) element.append(make("p", "faint", "So much happened that not everything around it is kept in full."));
  };

  const throughput = (element, run) => {
    const { x, measured, parts } = run.throughput;
    timed(run, element, {
      x,
      series: [
        { label: "measured", values: measured, colour: palette.compute },
        { label: "sum of the parts", values: parts, colour: palette.exchange, dash: [6, 4] },
      ],
      unit: "samples/s",
      ceiling: run.scale.throughput,
      marks: marksOf(run),
    });
  };

  const shares = (element, run) => {
    timed(run, element, {
      x: run.shares.x,
      series: run.shares.series,
      format: format.percent,
      ceiling: 1,
      stacked: true,
      marks: marksOf(run),
    });
  };

  const steps = (element, run) => {
    const { x, measured, predicted } = run.steps;
    const series = [...measured];
    if (predicted) series.push({ label: "predicted by the plan", values: predicted, colour: palette.other, dash: [6, 4] });
    timed(run, element, { x, series, format: format.seconds, ceiling: run.scale.steps, marks: run.marks.filter((mark) => mark.kind === "plan").map(withNumbers) });
  };

  const utilisation = (element, run) => {
    const place = element.appendChild(make("div", "charts"));
    const write = { bytes: format.bytes, "%": format.percent };
    for (const { title, unit, x, series } of run.utilisation) {
      timed(run, place.appendChild(make("div")), { title, x, series, unit, format: write[unit], height: 170 });
    }
  };

  const logged = (element, run) => {
    const choice = element.appendChild(make("button", "", "over samples"));
    choice.type = "button";
    const place = element.appendChild(make("div", "charts"));
    const charts = run.logged.map(({ name, x, samples, values }) => {
      const options = (isTime) => ({
        title: name,
        x: isTime ? x : samples,
        xLabel: isTime ? "time" : "samples",
        xFormat: isTime ? undefined : format.number,
        series: [{ label: name, values, colour: palette.compute }],
        floor: null,
        marks: isTime ? marksOf(run) : [],
      });
      const home = place.appendChild(make("div"));
      return { home, options, chart: timed(run, home, options(true)) };
    });
    let isTime = true;
    choice.addEventListener("click", () => {
      isTime = !isTime;
      choice.textContent = isTime ? "over samples" : "over time";
      for (const one of charts) {
        run.timed = run.timed.filter((chart) => chart !== one.chart);
        one.chart.destroy();
        one.chart = isTime ? timed(run, one.home, one.options(true)) : lines(one.home, one.options(false));
      }
    });
  };

  const exchange = (element, run) => {
    const picker = element.appendChild(make("select"));
    picker.setAttribute("aria-label", "which structure");
    const place = element.appendChild(make("div"));
    run.structures.forEach((one, number) => {
      const team = run.structures.some((other) => other.team !== one.team) ? `team ${one.team}, ` : "";
      const option = picker.appendChild(make("option", "", `${team}from step ${one.step} on (${format.moment(one.x, run.length)})`));
      option.value = number;
    });
    const show = () => structure(place, run.structures[picker.value].tree);
    picker.addEventListener("change", show);
    picker.value = run.structures.length - 1;
    picker.hidden = run.structures.length < 2;
    show();
  };

  const merges = (element, run) => {
    const rounds = run.marks.filter((mark) => mark.kind === "merge");
    const done = rounds.filter((mark) => mark.numbers.committed);
    element.append(make("p", "", `${done.length} merges, ${rounds.length - done.length} that failed.`));
    const place = element.appendChild(make("div", "charts"));
    const x = rounds.map((mark) => mark.x);
    const of = (name) => rounds.map((mark) => mark.numbers[name]);
    const marks = rounds.length <= MOST_MARKED ? rounds.map(withNumbers) : [];
    const charts = [
      { title: "how long a merge took", format: format.seconds, series: [
        { label: "from opening to end", values: rounds.map((mark) => mark.took_s), points: true },
        { label: "exchanging", values: of("exchange_s"), points: true },
        { label: "keeping a team from computing", values: of("busy_s"), points: true },
      ] },
      { title: "how far the teams were apart", series: [{ label: "drift", values: of("drift"), points: true }] },
      { title: "sent by the leaders", format: format.bytes, series: [{ label: "bytes", values: of("sent_bytes"), points: true }] },
    ];
    for (const one of charts) timed(run, place.appendChild(make("div")), { ...one, x, marks, height: 170 });
  };

  const served = (element, run) => {
    for (const line of run.served.lines) element.append(make("p", "", line));
    table(element, [
      { label: "staleness", of: ([at]) => at, isText: true },
      { label: "of the updates", of: ([, part]) => format.percent(part) },
    ], run.served.staleness);
  };

  const happened = (element, run, kinds) => {
    table(element, [
      { label: "when", of: (mark) => format.moment(mark.x, run.length) },
      { label: "what", of: (mark) => mark.label, isText: true },
      { label: "took", of: (mark) => (mark.took_s == null ? "" : format.seconds(mark.took_s)) },
      { label: "why, and the numbers", of: (mark) => withNumbers({ ...mark, took_s: null }).text, isText: true },
    ], run.marks.filter((mark) => kinds.includes(mark.kind)));
  };

  const links = (element, run) => {
    const rows = run.links;
    table(element, [
      { label: "from", of: (link) => link.from, isText: true },
      { label: "to", of: (link) => link.to, isText: true },
      { label: "bytes, both ways", of: (link) => format.bytes(link.bytes) },
      { label: "per second", of: (link) => (link.bytes_per_s ? format.bytes(link.bytes_per_s) : "–") },
      { label: "one way", of: (link) => (link.latency_s ? format.seconds(link.latency_s) : "–") },
      { label: "spoilt segments", of: (link) => String(link.corrupt) },
    ], rows);
  };

  const workers = (element, run) => {
    const each = (worker, kind) => (worker.steps ? format.seconds(worker.spent[kind] / worker.steps) : "–");
    table(element, [
      { label: "worker", of: (one) => one.name, isText: true },
      { label: "device", of: (one) => one.device, isText: true },
      { label: "steps", of: (one) => String(one.steps) },
      { label: "samples", of: (one) => format.number(one.samples) },
      { label: "share", of: (one) => format.number(one.share) },
      ...["compute", "data", "exchange", "wait", "update"].map((kind) => ({ label: kind, of: (one) => each(one, kind) })),
      { label: "last in", of: (one) => String(one.last) },
      { label: "others waited", of: (one) => format.seconds(one.caused) },
      { label: "ended", of: (one) => one.ended, isText: true },
    ], run.workers);
  };

  const has = (run, ...kinds) => run.marks.some((mark) => kinds.includes(mark.kind));
  const isLong = (list) => Boolean(list && list.length);

  // Each is shown where at least one of the runs has something to show in it.
  gangline.sections = [
    { title: "The bill", isFor: () => true, draw: bill },
    { title: "Figures", isFor: () => true, draw: figures },
    {
      title: "What everybody did",
      note: "Drag to zoom, double-click to see all; after a click, the wheel zooms. The triangles are decisions, faults, recoveries and pauses.",
      isFor: (run) => run.gantt.bins > 0,
      draw: timeline,
    },
    { title: "Throughput, and the sum of the parts", note: "The sum of the parts is what all workers compute per second while they compute.", isFor: (run) => isLong(run.throughput.x), draw: throughput },
    { title: "Shares", note: "Each worker's part of the samples.", isFor: (run) => run.shares && isLong(run.shares.x), draw: shares },
    { title: "What the script logged", isFor: (run) => isLong(run.logged), draw: logged },
    { title: "Utilisation", isFor: (run) => isLong(run.utilisation), draw: utilisation },
    { title: "Step time, predicted and measured", isFor: (run) => isLong(run.steps.x), draw: steps },
    { title: "Who exchanges with whom", isFor: (run) => isLong(run.structures), draw: exchange },
    { title: "Teams and merges", isFor: (run) => has(run, "merge"), draw: merges },
    { title: "Parameter servers", note: "An update is as stale as others were applied since the parameters were read that it was computed from.", isFor: (run) => Boolean(run.served), draw: served },
    { title: "Faults and recoveries", isFor: (run) => has(run, "fault", "recovery", "ended", "gradient"), draw: (element, run) => happened(element, run, ["fault", "recovery", "ended", "gradient"]) },
    { title: "Decisions", isFor: (run) => has(run, "decision", "plan", "pause"), draw: (element, run) => happened(element, run, ["decision", "plan", "pause"]) },
    { title: "Bytes per link", isFor: (run) => isLong(run.links), draw: links },
    { title: "Workers", note: "Times are per step.", isFor: (run) => isLong(run.workers), draw: workers },
  ];
  gangline.table = table;
})();
