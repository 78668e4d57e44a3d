// SPDX-License-Identifier: Apache-2.0
// The table of workers, and what is known of the one that was chosen.
"use strict";
(() => {
  const { make, format, palette } = gangline;

  const stateOf = (one, now) => {
    if (!one.is_connected) return `${one.state}, not connected`;
    return one.is_member && now.is_paused ? "paused" : one.state;
  };

  // What it does with its time: busy, exchanging, waiting.
  const timeBar = (one) => {
    const bar = make("div", "bar");
    if (one.busy == null) return bar;
    const parts = [["compute", one.busy], ["exchange", 1 - one.busy - one.wait], ["wait", one.wait]];
    for (const [name, part] of parts) {
      const piece = bar.appendChild(make("i"));
      piece.style.width = `${100 * Math.max(0, part)}%`;
      piece.style.background = palette[name];
    }
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", parts.map(([name, part]) => `${name} ${format.percent(Math.max(0, part))}`).join(", "));
    bar.title = bar.getAttribute("aria-label");
    return bar;
  };

  const COLUMNS = [
    ["worker", "text"], ["host", "text wide"], ["state", "text"], ["share", ""], ["samples/s", ""],
    ["alone", "wide"], ["waits", ""], ["compute · exchange · wait", "text"],
  ];

  const row = (one, now, choose, chosen) => {
    const line = make("tr", `${one.is_member ? "" : "away"} ${chosen === one.worker ? "chosen" : ""}`);
    const cells = [null, one.host, stateOf(one, now), one.is_member ? one.share : "–", format.number(one.samples_per_s), format.number(one.alone_per_s), format.percent(one.wait), null];
    cells.forEach((text, place) => line.appendChild(make("td", COLUMNS[place][1], text)));
    const name = line.firstChild.appendChild(make("button", "", String(one.worker)));
    name.type = "button";
    name.setAttribute("aria-label", `worker ${one.worker}`);
    name.setAttribute("aria-expanded", String(chosen === one.worker));
    line.lastChild.appendChild(timeBar(one));
    line.addEventListener("click", () => choose(one.worker));
    return line;
  };

  // Draws the table anew; the focus stays where it was.
  gangline.workerTable = (table, now, { choose, chosen }) => {
    const focused = document.activeElement && table.contains(document.activeElement) ? document.activeElement.textContent : null;
    const head = make("thead").appendChild(make("tr"));
    for (const [name, kind] of COLUMNS) head.appendChild(make("th", kind, name));
    const body = make("tbody");
    for (const one of now.workers) body.appendChild(row(one, now, choose, chosen));
    table.replaceChildren(head.parentElement, body);
    if (focused !== null) for (const button of table.querySelectorAll("button")) if (button.textContent === focused) button.focus();
  };

  const facts = (one, now) => [
    ["process", `${one.pid} on ${one.host}`],
    ["state", stateOf(one, now)],
    ["step", one.step],
    ["share", one.is_member ? `${one.share} samples of each step` : "none: it does not take part"],
    ["per step", one.compute_s == null ? "no step lately" : `computing ${format.seconds(one.compute_s)}, data ${format.seconds(one.data_s)}, exchange and waiting ${format.seconds(one.exchange_s)}, update ${format.seconds(one.update_s)}`],
    ["cores used", one.cpu == null ? "–" : format.number(one.cpu)],
    ["memory", format.bytes(one.memory_bytes)],
    ["GPU", one.gpu == null ? "–" : format.percent(one.gpu)],
    [one.is_member ? "last decision" : "why it is out", one.why || "nothing was decided about it"],
  ];

  // Shows one worker, with the orders that can be given for it.
  gangline.workerPanel = (element, one, now, orders) => {
    const focused = element.contains(document.activeElement) ? document.activeElement.textContent : null;
    element.replaceChildren(make("h3", "", `worker ${one.worker}`));
    const list = element.appendChild(make("dl"));
    for (const [name, value] of facts(one, now)) {
      list.appendChild(make("dt", "", name));
      list.appendChild(make("dd", "", String(value)));
    }
    const bar = element.appendChild(make("div", "orders"));
    for (const order of orders) {
      const button = bar.appendChild(make("button", order.isDire ? "alarm" : "", order.name));
      button.type = "button";
      button.addEventListener("click", order.give);
      if (order.name === focused) button.focus();
    }
    element.hidden = false;
  };
})();
