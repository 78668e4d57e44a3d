// SPDX-License-Identifier: Apache-2.0
// What the coordinator's stream comes to: the points of the charts, the news, and the newest snapshot.
"use strict";
window.gangline = window.gangline || {};
(() => {
  const MAX_POINTS = 2000; // of more, every second one is dropped
  const MAX_NEWS = 300;

  // Whether something went wrong, or was mended.
  const FAULTS = new Set(["fault_fired", "regrouped", "worker_ended", "gradient_not_finite", "gradient_too_large", "events_lost", "lease_returned"]);
  // Decisions that follow from others, which are told already.
  const DULL = new Set(["publish_view"]);

  const plain = (event) => {
    switch (event.kind) {
      case "decision": return event.reason;
      case "view_adopted": return `from step ${event.step} on ${event.members.length} member${event.members.length === 1 ? "" : "s"}: ${event.reason}`;
      case "regrouped": return `worker ${event.worker} goes on in group ${event.group} with step ${event.step}, after ${gangline.format.seconds(event.took_s)}: ${event.reason}`;
      case "fault_fired": return `worker ${event.worker}: ${event.fault} in step ${event.step}`;
      case "worker_ended": return `worker ${event.worker} ended: ${event.reason}`;
      case "round_ended": return `${event.is_committed ? "teams were merged" : "teams were not merged"} in ${gangline.format.seconds(event.took_s)}, drift ${gangline.format.number(event.drift)}: ${event.reason}`;
      case "plan_made": return `${event.chosen}, ${event.bound}: a step should take ${gangline.format.seconds(event.step_s)}. ${event.reasons.join("; ")}`;
      case "worker_ready": return `worker ${event.worker} is ready on ${event.device}, ${event.parameters} parameters`;
      case "run_started": return `${event.workers} workers: ${event.command.join(" ")}`;
      case "run_ended": return `${event.status}: ${event.reason}`;
      case "gradient_not_finite": return `worker ${event.worker}: a gradient that is not finite, in step ${event.step}`;
      case "gradient_too_large": return `worker ${event.worker}: a gradient of ${gangline.format.number(event.norm)}, in step ${event.step}`;
      default: return event.reason || event.error || "";
    }
  };

  class Live {
    constructor() {
      this.forget();
    }

    forget() {
      this.role = "observer";
      this.moments = [];
      this.news = [];
      this.marks = [];
      this.now = null;
      this.isEnding = false; // an operator has ordered the end
    }

    // Takes one message; says which parts of the page it changes.
    take(message) {
      switch (message.kind) {
        case "history":
          this.forget();
          this.role = message.role;
          this.add(message.moments);
          return ["charts", "news"];
        case "moments":
          this.add(message.moments);
          return ["charts"];
        case "snapshot":
          this.now = message;
          return ["now"];
        default:
          this.addNews(message);
          return ["news"];
      }
    }

    add(moments) {
      for (const [t, speed, parts, loss, shares] of moments) {
        const last = this.moments[this.moments.length - 1];
        if (last && t <= last.t) continue;
        const known = Object.keys(shares).length ? shares : last ? last.shares : {};
        this.moments.push({ t, speed, parts, loss, shares: known });
      }
      if (this.moments.length > MAX_POINTS) this.moments = this.moments.filter((_, place) => place % 2 === 0);
    }

    addNews(event) {
      if (event.kind === "decision" && DULL.has(event.what)) return;
      const what = event.kind === "decision" ? event.what : event.kind;
      if (event.kind === "decision" && what === "end") this.isEnding = true;
      if (event.kind === "run_started") this.isEnding = false; // resumed
      const one = { t: event.t, what: what.replaceAll("_", " "), text: plain(event), isFault: FAULTS.has(event.kind) };
      this.news.push(one);
      this.news = this.news.slice(-MAX_NEWS);
      if (event.kind === "decision" || one.isFault) this.marks.push({ x: one.t, label: one.what, text: one.text });
      this.marks = this.marks.slice(-MAX_NEWS);
    }

    // The workers that ever had a share, by number.
    get sharers() {
      const found = new Set();
      for (const moment of this.moments) for (const worker of Object.keys(moment.shares)) found.add(Number(worker));
      return [...found].sort((a, b) => a - b);
    }
  }

  gangline.Live = Live;
})();
