// SPDX-License-Identifier: Apache-2.0
// The last steps of all workers as bars over time, on a canvas that is drawn anew with each snapshot.
"use strict";
(() => {
  const ROW = 22;
  const LEFT = 84;
  const BOTTOM = 22;
  const PARTS = [["data", "data_s"], ["compute", "compute_s"], ["exchange", "exchange_s"], ["wait", "wait_s"], ["update", "update_s"]];

  const begin = (bar) => bar.t - bar.data_s - bar.compute_s - bar.exchange_s - bar.wait_s - bar.update_s;

  const draw = (canvas, bars) => {
    const workers = [...new Set(bars.map((bar) => bar.worker))].sort((a, b) => a - b);
    const ratio = devicePixelRatio || 1;
    const width = canvas.parentElement.clientWidth;
    const height = workers.length * ROW + BOTTOM;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    ctx.font = "12px system-ui, sans-serif";
    const to = Math.max(...bars.map((bar) => bar.t));
    // As far back as all workers are known, and not farther than bars can be told apart.
    const from = Math.max(...workers.map((worker) => Math.min(...bars.filter((bar) => bar.worker === worker).map(begin))));
    const first = Math.min(from, to - 1e-3);
    const x = (t) => LEFT + ((t - first) / (to - first)) * (width - LEFT - 4);
    workers.forEach((worker, row) => {
      ctx.fillStyle = gangline.colour("--ink");
      ctx.fillText(`worker ${worker}`, 0, row * ROW + 15);
      for (const bar of bars) if (bar.worker === worker) paint(ctx, bar, x, row);
    });
    ctx.clearRect(LEFT - 30, workers.length * ROW, 30, BOTTOM);
    ctx.fillStyle = gangline.colour("--faint");
    ctx.fillText(`${gangline.format.seconds(to - first)} ago`, LEFT, height - 6);
    ctx.textAlign = "right";
    ctx.fillText("the last step that is known", width - 4, height - 6);
    return { x, workers };
  };

  const paint = (ctx, bar, x, row) => {
    let t = begin(bar);
    // Waiting comes before the exchange: nobody can exchange with who is not there.
    for (const [name, field] of [PARTS[0], PARTS[1], PARTS[3], PARTS[2], PARTS[4]]) {
      const left = Math.max(LEFT, x(t));
      t += bar[field];
      const right = x(t);
      if (right <= LEFT) continue;
      ctx.fillStyle = gangline.palette[name];
      ctx.fillRect(left, row * ROW + 3, Math.max(right - left - (name === "update" ? 0.5 : 0), 0.2), ROW - 6);
    }
  };

  // Makes the chart in `element`; its update(bars) draws other ones.
  gangline.lastSteps = (element) => {
    const { make, palette, tip, format } = gangline;
    const key = element.appendChild(make("div", "key"));
    for (const [name] of PARTS) {
      const one = key.appendChild(make("span"));
      one.appendChild(make("i")).style.background = palette[name];
      one.append(name);
    }
    const canvas = element.appendChild(make("canvas"));
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "chart: what each worker did in the last steps");
    let shown = [];
    let frame = null;
    const redraw = () => {
      if (shown.length) frame = draw(canvas, shown);
    };
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const worker = frame && frame.workers[Math.floor((event.clientY - box.top) / ROW)];
      const at = event.clientX - box.left;
      const bar = shown.find((one) => one.worker === worker && frame.x(begin(one)) <= at && at <= frame.x(one.t));
      if (!bar) return tip.hide();
      const parts = PARTS.map(([name, field]) => `${name} ${format.seconds(bar[field])}`).join("\n");
      tip.show(`worker ${bar.worker}, ${bar.steps > 1 ? `${bar.steps} steps from ${bar.step} on` : `step ${bar.step}`}\n${parts}`, event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => tip.hide());
    new ResizeObserver(redraw).observe(element);
    gangline.redrawn.add(redraw);
    return {
      update(bars) {
        shown = bars;
        redraw();
      },
    };
  };
})();
