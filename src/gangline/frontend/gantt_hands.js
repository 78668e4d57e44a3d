// SPDX-License-Identifier: Apache-2.0
// How the Gantt chart is handled: wheel, pointer, fingers and keys.
"use strict";
(() => {
  const { tip, colour, marksNear, describeMarks } = gangline;

  // What is under the pointer is said beside it.
  const hover = (chart, event) => {
    const [x, y] = chart.pointOf(event);
    const near = marksNear(chart.marks, (mark) => chart.xOf(mark.x) - x);
    const row = chart.rowAt(y);
    const say = (text) => tip.show(text, event.clientX, event.clientY);
    if (near.length && y < chart.top) say(describeMarks(near));
    else if (row >= 0 && x >= chart.labels) say(chart.describe(row, chart.timeAt(x)));
    else tip.hide();
  };

  // The part of the chart that will be shown when the pointer is let go.
  const drawChoice = (chart, from, to) => {
    chart.draw();
    const context = chart.canvas.getContext("2d");
    context.fillStyle = colour("--accent");
    context.globalAlpha = 0.2;
    context.fillRect(Math.min(from, to), chart.top, Math.abs(to - from), chart.height - chart.top);
    context.globalAlpha = 1;
  };

  // Two fingers: what is under the one that rests stays there.
  const pinch = (chart, fingers, moved, x) => {
    const still = [...fingers].find(([id]) => id !== moved)[1];
    const before = Math.abs(fingers.get(moved) - still);
    const now = Math.abs(x - still);
    if (before > 4 && now > 4) chart.zoomBy(before / now, chart.timeAt(still));
  };

  const wheel = (chart, event) => {
    const isOurs = event.ctrlKey || event.metaKey || document.activeElement === chart.canvas;
    if (!isOurs) return; // the page scrolls on
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) chart.move(event.deltaX / chart.width);
    else chart.zoomBy(1.0018 ** event.deltaY, chart.timeAt(chart.pointOf(event)[0]));
  };

  // The mouse chooses what to zoom to; with shift, or a finger, it moves the chart.
  const usePointer = (chart) => {
    const fingers = new Map();
    let pressed = null;
    const on = (name, act) => chart.canvas.addEventListener(name, act);
    on("pointerdown", (event) => {
      chart.canvas.setPointerCapture(event.pointerId);
      chart.canvas.focus({ preventScroll: true });
      const x = chart.pointOf(event)[0];
      fingers.set(event.pointerId, x);
      pressed = { x, isMove: event.pointerType === "touch" || event.shiftKey };
    });
    on("pointermove", (event) => {
      const x = chart.pointOf(event)[0];
      if (!pressed) hover(chart, event);
      else if (fingers.size === 2) pinch(chart, fingers, event.pointerId, x);
      else if (pressed.isMove) {
        const by = chart.timeAt(pressed.x) - chart.timeAt(x);
        chart.zoom(chart.view.begin + by, chart.view.end + by);
        pressed.x = x;
      } else drawChoice(chart, pressed.x, x);
      if (fingers.has(event.pointerId)) fingers.set(event.pointerId, x);
    });
    on("pointerup", (event) => {
      const x = chart.pointOf(event)[0];
      fingers.delete(event.pointerId);
      if (pressed && !pressed.isMove && Math.abs(x - pressed.x) > 4) {
        const [one, other] = [chart.timeAt(pressed.x), chart.timeAt(x)];
        chart.zoom(Math.min(one, other), Math.max(one, other));
      }
      if (!fingers.size) pressed = null;
    });
    on("pointercancel", () => {
      fingers.clear();
      pressed = null;
    });
    on("pointerleave", tip.hide);
    on("dblclick", () => chart.zoom(0, chart.model.length));
  };

  // Up and down read the middle of the chart, worker by worker.
  const read = (chart, by) => {
    chart.row = Math.min(chart.model.rows.length - 1, Math.max(0, chart.row + by));
    const t = (chart.view.begin + chart.view.end) / 2;
    const box = chart.canvas.getBoundingClientRect();
    tip.show(chart.describe(chart.row, t), box.left + chart.xOf(t), box.top + chart.top + chart.row * chart.rowHeight);
  };

  const useKeys = (chart) => {
    const keys = {
      "+": () => chart.zoomBy(0.5),
      "=": () => chart.zoomBy(0.5),
      "-": () => chart.zoomBy(2),
      ArrowLeft: () => chart.move(-0.2),
      ArrowRight: () => chart.move(0.2),
      ArrowUp: () => read(chart, -1),
      ArrowDown: () => read(chart, 1),
      0: () => chart.zoom(0, chart.model.length),
      Escape: () => tip.hide(),
    };
    chart.canvas.addEventListener("keydown", (event) => {
      if (!keys[event.key]) return;
      keys[event.key]();
      event.preventDefault();
    });
  };

  gangline.ganttHands = (chart) => {
    chart.canvas.addEventListener("wheel", (event) => wheel(chart, event), { passive: false });
    usePointer(chart);
    useKeys(chart);
  };
})();
