// SPDX-License-Identifier: Apache-2.0
// The live view of a job: draws what the stream tells, and sends what an operator orders.
"use strict";
(() => {
  const { make, format } = gangline;
  const at = (id) => document.getElementById(id);
  const live = new gangline.Live();
  let chosen = null; // the worker whose figures are shown
  let lostAt = null; // since when the coordinator does not answer
  let charts = null;
  let bars = null;

  // --- orders -------------------------------------------------------------------------------------

  const tell = (text, isAlarm) => {
    at("told").textContent = text;
    at("told").classList.toggle("alarm", Boolean(isAlarm));
  };

  const confirmed = (question) =>
    new Promise((answered) => {
      const dialog = at("ask");
      at("question").textContent = question;
      dialog.returnValue = "no";
      dialog.addEventListener("close", () => answered(dialog.returnValue === "yes"), { once: true });
      dialog.showModal();
    });

  const give = async (name, order, question) => {
    if (question && !(await confirmed(question))) return;
    tell(`${name} …`);
    try {
      const response = await fetch("/dashboard/order", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(order),
      });
      if (response.ok) tell(`${name}: asked for`);
      else tell(`${name}: ${(await response.text()).trim()}`, true);
    } catch {
      tell(`${name}: the coordinator does not answer`, true);
    }
  };

  const workerOrders = (one, now) => {
    if (live.role !== "operator") return [];
    const { worker } = one;
    const order = (name, key, question) => ({
      name,
      isDire: Boolean(question),
      give: () => give(`${name} worker ${worker}`, { order: key, worker }, question),
    });
    const orders = [];
    if (one.is_member) {
      orders.push(order("exclude", "exclude", `Worker ${worker} is kept out until it is taken back. The others go on.`));
      orders.push(order("leave", "leave", `Worker ${worker} finishes its step, and leaves for good. The others go on.`));
    }
    if (one.state === "spare") orders.push(order("take back", "take_back"));
    if (now.may_kill && one.is_connected) orders.push(order("kill", "kill", `The process of worker ${worker} is killed, to see the job survive it.`));
    return orders;
  };

  const MODES = ["full", "flexible", "local(16)", "percentage(0.25)", "none", "bsp", "ssp(4)", "asp", "auto"];

  const drawOrders = () => {
    const place = at("orders");
    place.hidden = live.role !== "operator";
    if (place.hidden || place.childElementCount) return;
    const button = (name, press) => {
      const one = place.appendChild(make("button", "", name));
      one.type = "button";
      one.addEventListener("click", press);
      return one;
    };
    const label = place.appendChild(make("label", "", "mode "));
    const select = label.appendChild(make("select"));
    select.id = "mode";
    const present = live.now ? live.now.sync : "";
    for (const mode of new Set([...MODES, present])) if (mode) select.appendChild(make("option", "", mode));
    if (present) select.value = present;
    button("change mode", () => {
      if (live.now && select.value === live.now.sync) tell(`the mode is ${select.value} already`);
      else give(`mode ${select.value}`, { order: "sync", value: select.value });
    });
    button("plan anew", () => give("plan anew", { order: "replan", value: "auto" }));
    button("pause", () => {
      const order = live.now && live.now.is_paused ? "resume" : "pause";
      give(order, { order });
    }).id = "pause";
    button("checkpoint", () => give("checkpoint", { order: "checkpoint" }));
    button("end", () => give("end", { order: "end" }, "Everybody leaves between two steps, the last one keeps a checkpoint, and the job ends.")).className = "alarm";
  };

  // --- what is now --------------------------------------------------------------------------------

  const figures = (now) => {
    const members = now.workers.filter((one) => one.is_member);
    const efficiency = now.samples_per_s && now.parts_per_s ? now.samples_per_s / now.parts_per_s : null;
    return [
      [now.is_paused ? "paused" : format.number(now.samples_per_s), "samples/s"],
      [format.percent(efficiency), "of the sum of the parts"],
      [now.epoch < 0 ? "–" : now.epochs ? `${now.epoch + 1}/${now.epochs}` : String(now.epoch), "epoch"],
      [now.step < 0 ? "–" : String(now.step), "step"],
      [format.number(now.loss), "loss"],
      [`${members.length} of ${now.workers.length}`, "workers take part"],
    ];
  };

  const drawFigures = (now) => {
    at("figures").replaceChildren(
      ...figures(now).map(([value, name]) => {
        const box = make("div");
        box.append(make("b", "", value), make("span", "", name));
        return box;
      })
    );
  };

  const choose = (worker) => {
    chosen = chosen === worker ? null : worker;
    drawNow();
  };

  const drawNow = () => {
    const { now } = live;
    if (!now) return;
    document.title = `${now.run} · gangline`;
    at("run").textContent = now.run;
    drawFigures(now);
    drawOrders();
    if (at("pause")) at("pause").textContent = now.is_paused ? "resume" : "pause";
    gangline.workerTable(at("workers"), now, { choose, chosen });
    const one = now.workers.find((worker) => worker.worker === chosen);
    if (one) gangline.workerPanel(at("worker"), one, now, workerOrders(one, now));
    else at("worker").hidden = true;
    if (lostAt !== null) setLost(true); // also the buttons of a panel that is new
    if (now.bars.length) bars.update(now.bars);
    drawSync(now);
    drawStructure(now);
    if (now.skipped_bytes) tell(`The logs grow faster than this page can follow: ${format.bytes(now.skipped_bytes)} were left out.`);
  };

  // --- who exchanges with whom --------------------------------------------------------------------

  let drawn = "";
  const named = (now) => new Map(now.workers.map((one) => [one.worker, one]));

  const treeOf = (group, workers) => ({
    ...group,
    members: group.members.map((worker) => member(workers.get(worker), worker)),
    groups: group.groups.map((one) => treeOf(one, workers)),
  });

  const member = (one, worker) => ({ worker, node: one ? one.node || one.host : "", share: one ? one.share : null });

  const drawStructure = (now) => {
    const workers = named(now);
    const teams = new Map();
    for (const one of now.workers) if (one.is_member) teams.set(one.team, [...(teams.get(one.team) || []), one.worker]);
    const state = JSON.stringify([now.structure, [...teams], now.workers.map((one) => one.share)]);
    if (state === drawn) return;
    drawn = state;
    const rings = now.structure
      ? [treeOf(now.structure, workers)]
      : [...teams.values()].map((team) => treeOf({ topology: "ring", leader: team[0], members: team, groups: [] }, workers));
    at("structure").replaceChildren();
    for (const ring of rings) {
      const place = at("structure").appendChild(make("div"));
      if (rings.length > 1) place.appendChild(make("p", "title", `team ${workers.get(ring.leader).team}`));
      gangline.structure(place.appendChild(make("div")), ring);
    }
  };

  // How the teams are held together, and how their last merge went.
  const drawSync = (now) => {
    const teams = new Set(now.workers.filter((one) => one.is_member).map((one) => one.team));
    const merge = now.last_merge;
    const merged = merge
      ? `; merged ${now.num_merges} times, the last one took ${format.seconds(merge.took_s)}, kept a team from computing for ${format.seconds(merge.busy_s)}, and found them ${format.number(merge.drift)} of the way apart that the mean has gone`
      : "";
    at("sync").textContent = teams.size > 1 ? `${teams.size} teams, held together by ${now.sync}${merged}` : `all in step${now.sync ? ` (${now.sync})` : ""}`;
  };

  // --- charts and news ----------------------------------------------------------------------------

  const clock = (t) => new Date(t * 1000).toLocaleTimeString([], { hour12: false });

  const seriesOf = () => {
    const { moments, sharers } = live;
    return {
      x: moments.map((one) => one.t),
      speed: [
        { label: "together", values: moments.map((one) => one.speed), colour: gangline.palette.compute },
        { label: "sum of the parts", values: moments.map((one) => one.parts), colour: gangline.palette.exchange, dash: [6, 4] },
      ],
      shares: sharers.map((worker) => ({ label: `worker ${worker}`, values: moments.map((one) => one.shares[worker] ?? 0) })),
      loss: [{ label: "loss", values: moments.map((one) => one.loss), colour: gangline.palette.update }],
    };
  };

  const drawCharts = () => {
    const { x, speed, shares, loss } = seriesOf();
    const hasLoss = live.moments.some((one) => one.loss != null);
    at("noloss").hidden = hasLoss;
    at("loss").hidden = !hasLoss;
    if (!x.length) return;
    const common = { x, marks: live.marks, xFormat: clock, xLabel: "time" };
    if (!charts) {
      charts = {
        speed: gangline.lines(at("speed"), { ...common, series: speed, unit: "samples/s" }),
        shares: gangline.lines(at("shares"), { ...common, series: shares, unit: "samples", stacked: true }),
        loss: gangline.lines(at("loss"), { ...common, series: loss, floor: null }),
      };
      return;
    }
    charts.speed.update({ ...common, series: speed });
    charts.shares.update({ ...common, series: shares });
    charts.loss.update({ ...common, series: loss });
  };

  const drawNews = () => {
    const lines = [...live.news].reverse().slice(0, 100).map((one) => {
      const line = make("li", one.isFault ? "fault" : "");
      line.append(make("time", "", clock(one.t)), make("span", "what", one.what), make("span", "text", one.text));
      return line;
    });
    at("news").replaceChildren(...lines);
  };

  // --- the stream ---------------------------------------------------------------------------------

  const draws = { now: drawNow, charts: drawCharts, news: drawNews };
  const due = new Set();
  const drawDue = () => {
    for (const part of due) draws[part]();
    due.clear();
  };

  const line = (text, isLost) => {
    at("line").textContent = text;
    at("line").classList.toggle("lost", isLost);
  };

  // So long a coordinator may be away: it may be started again.
  const PATIENCE_MS = 15000;

  const setLost = (isLost) => {
    lostAt = isLost ? lostAt ?? Date.now() : null;
    document.body.classList.toggle("over", isLost);
    for (const button of document.querySelectorAll("#orders button, #orders select, #worker button")) button.disabled = isLost;
  };

  const drawLost = () => {
    setLost(true);
    if (!live.isEnding && Date.now() - lostAt < PATIENCE_MS) return line("not connected: the run is over, or its coordinator is away", true);
    line("the run is over", true);
    tell("These were its last figures. Its report is report.html in the run folder, or is made by: gangline report RUN_DIR");
  };

  const follow = () => {
    const source = new EventSource("/dashboard/stream");
    source.onopen = () => {
      if (lostAt !== null) tell("");
      setLost(false);
      line("live", false);
    };
    source.onmessage = (event) => {
      if (!due.size) requestAnimationFrame(drawDue);
      for (const part of live.take(JSON.parse(event.data))) due.add(part);
    };
    source.onerror = () => {
      drawLost();
      // A browser gives up where it is told that it may not: the login is over, say.
      if (source.readyState === EventSource.CLOSED) setTimeout(retry, 3000);
    };
  };

  const retry = async () => {
    try {
      const page = await fetch("/dashboard/assets/dashboard.css");
      if (page.status === 401) location.reload();
      else follow();
    } catch {
      drawLost();
      setTimeout(retry, 3000);
    }
  };

  at("theme").replaceWith(gangline.themeSwitch());
  at("logout").addEventListener("click", async () => {
    await fetch("/dashboard/logout", { method: "POST" });
    location.reload();
  });
  bars = gangline.lastSteps(at("steps"));
  follow();
})();
