// SPDX-License-Identifier: Apache-2.0
// The table of workers, and what is known of the one that was chosen.
"use strict";
(() => {
  const { make, format, palette } = gangline;

  const stateOf = (one, now) => {
    if (!one.is_connected) return `${one.state}, not connected`;
    return one.is_member && now.is_paused ? "paused" : one.state;
  };

  // Emulated nodes share a host: their names tell them apart.
  const hostOf = (one) => (one.node && one.node !== one.host ? `${one.node} (${one.host})` : one.host);

  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  const PARTS = ["compute", "exchange", "wait"];

  // What it does with its time: busy, exchanging, waiting.
  const makeBar = (place) => {
    const bar = place.appendChild(make("div", "bar"));
    bar.setAttribute("role", "img");
    for (const name of PARTS) bar.appendChild(make("i")).style.background = palette[name];
  };

  const drawBar = (bar, one) => {
    const parts = one.busy == null ? [0, 0, 0] : [one.busy, 1 - one.busy - one.wait, one.wait];
    const widths = parts.map((part) => Math.max(0, Math.round(1e4 * part) / 1e4));
    widths.forEach((part, place) => {
      bar.children[place].style.width = `${100 * part}%`;
      bar.children[place].style.display = part ? "" : "none";
    });
    const told = one.busy == null ? "no step lately" : PARTS.map((name, place) => `${name} ${format.percent(widths[place])}`).join(", ");
    bar.title = told;
    bar.setAttribute("aria-label", told);
  };

  const COLUMNS = [
    ["worker", "text"], ["host", "text wide"], ["state", "text"], ["share", ""], ["samples/s", ""],
    ["alone", "wide"], ["waits", ""], ["compute · exchange · wait", "text"],
  ];

  const makeRow = (worker, choose) => {
    const line = make("tr");
    line.worker = worker;
    for (const [, kind] of COLUMNS) line.appendChild(make("td", kind));
    const name = line.firstChild.appendChild(make("button", "", String(worker)));
    name.type = "button";
    name.setAttribute("aria-label", `worker ${worker}`);
    makeBar(line.lastChild);
    line.addEventListener("click", () => choose(worker));
    return line;
  };

  const drawRow = (line, one, now, isChosen) => {
    line.className = `${one.is_member ? "" : "away"} ${isChosen ? "chosen" : ""}`;
    line.querySelector("button").setAttribute("aria-expanded", String(isChosen));
    const texts = [hostOf(one), stateOf(one, now), one.is_member ? one.share : "–", format.number(one.samples_per_s), format.number(one.alone_per_s), format.percent(one.wait)];
    texts.forEach((text, place) => say(line.children[place + 1], String(text)));
    drawBar(line.lastChild.firstChild, one);
  };

  // Rows stay where they are, and change in place: a press that lasts longer than a snapshot is a click.
  gangline.workerTable = (table, now, { choose, chosen }) => {
    if (!table.tBodies.length) {
      const head = table.createTHead().insertRow();
      for (const [name, kind] of COLUMNS) head.appendChild(make("th", kind, name));
      table.createTBody();
    }
    const body = table.tBodies[0];
    const known = new Map([...body.rows].map((line) => [line.worker, line]));
    now.workers.forEach((one, place) => {
      const line = known.get(one.worker) || makeRow(one.worker, choose);
      if (body.rows[place] !== line) body.insertBefore(line, body.rows[place] || null);
      drawRow(line, one, now, chosen === one.worker);
    });
    while (body.rows.length > now.workers.length) body.lastChild.remove();
  };

  const facts = (one, now) => [
    ["process", `${one.pid} on ${hostOf(one)}`],
    ["state", stateOf(one, now)],
    ["step", one.step],
    ["share", one.is_member ? `${one.share} samples of each step` : "none: it does not take part"],
    ["per step", one.compute_s == null ? "no step lately" : `computing ${format.seconds(one.compute_s)}, data ${format.seconds(one.data_s)}, exchange and waiting ${format.seconds(one.exchange_s)}, update ${format.seconds(one.update_s)}`],
    ["cores used", one.cpu == null ? "–" : format.number(one.cpu)],
    ["memory", format.bytes(one.memory_bytes)],
    ["GPU", one.gpu == null ? "–" : format.percent(one.gpu)],
    [one.is_member ? "last decision" : "why it is out", one.why || "nothing was decided about it"],
  ];

  const makePanel = (element, one, names, orders) => {
    element.replaceChildren(make("h3", "", `worker ${one.worker}`));
    const list = element.appendChild(make("dl"));
    for (let count = 0; count < names.length; count++) list.append(make("dt"), make("dd"));
    const bar = element.appendChild(make("div", "orders"));
    for (const order of orders) {
      const button = bar.appendChild(make("button", order.isDire ? "alarm" : "", order.name));
      button.type = "button";
      button.addEventListener("click", order.give);
    }
  };

  // Shows one worker, with the orders that can be given for it; made anew where these are others.
  gangline.workerPanel = (element, one, now, orders) => {
    const known = facts(one, now);
    const shown = JSON.stringify([one.worker, orders.map((order) => order.name)]);
    if (element.shown !== shown) {
      const focused = element.contains(document.activeElement) ? document.activeElement.textContent : null;
      makePanel(element, one, known, orders);
      for (const button of element.querySelectorAll("button")) if (button.textContent === focused) button.focus();
      element.shown = shown;
    }
    const places = element.querySelectorAll("dt, dd");
    known.flat().forEach((text, place) => say(places[place], String(text)));
    element.hidden = false;
  };
})();
