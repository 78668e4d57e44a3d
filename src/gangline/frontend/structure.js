// SPDX-License-Identifier: Apache-2.0
// Who exchanges with whom, as a picture: rings and servers of workers, and groups of these.
"use strict";
(() => {
  const { make, look } = gangline;
  const SPACE = "http://www.w3.org/2000/svg";
  const MOST_NAMED = 24;
  const PAD = 16;
  const HEAD = 24;

  const draw = (parent, tag, attributes, text) => {
    const element = document.createElementNS(SPACE, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text != null) element.textContent = text;
    return parent.appendChild(element);
  };

  const isServer = (group) => group.topology === "parameter-server";

  const titleOf = (group, isTop) => {
    const kind = isServer(group) ? `server at ${group.leader}` : "ring";
    const drawn = (group.groups.length ? group.groups : group.members).length;
    const all = group.count ?? drawn;
    const cut = all > drawn ? `, ${drawn} are drawn` : "";
    const count = `of ${all}${group.groups.length ? " groups" : ""}${cut}`;
    const short = group.compression && group.compression !== "none" ? `, ${group.compression}` : "";
    return `${isTop ? "all: " : ""}${kind} ${count}${short}`;
  };

  // Where everything in a group lies, from its upper left corner.
  const layout = (group) => (group.groups.length ? layoutGroups(group) : layoutMembers(group));

  const layoutMembers = (group) => {
    const count = group.members.length;
    const isNamed = count <= MOST_NAMED;
    const step = isNamed ? 62 : 9;
    const radius = Math.max(isNamed ? 42 : 20, (count * step) / (2 * Math.PI));
    const side = 2 * radius + (isNamed ? 76 : 24);
    const centre = [side / 2 + PAD, side / 2 + PAD + HEAD / 2];
    const spots = group.members.map((member, place) => {
      const angle = (place / count) * 2 * Math.PI - Math.PI / 2;
      const reach = count === 1 ? 0 : radius;
      return { member, at: [centre[0] + reach * Math.cos(angle), centre[1] + reach * Math.sin(angle)] };
    });
    const leader = spots.find((spot) => spot.member.worker === group.leader) || spots[0];
    return { group, isNamed, spots, parts: [], width: side + 2 * PAD, height: side + 2 * PAD + HEAD / 2, leader: leader.at };
  };

  const layoutGroups = (group) => {
    const parts = group.groups.map(layout);
    const perRow = Math.max(1, Math.ceil(Math.sqrt(parts.length * 1.6)));
    let [x, y, rowHeight, width] = [PAD, PAD + HEAD, 0, 0];
    parts.forEach((part, place) => {
      if (place && place % perRow === 0) [x, y, rowHeight] = [PAD, y + rowHeight + PAD * 2, 0];
      part.at = [x, y];
      x += part.width + PAD * 2;
      rowHeight = Math.max(rowHeight, part.height);
      width = Math.max(width, x);
    });
    const leading = parts.find((part) => part.group.leader === group.leader) || parts[0];
    return { group, spots: [], parts, width: width + PAD, height: y + rowHeight + PAD, leader: speaker(leading) };
  };

  const speaker = (part) => [part.at[0] + part.leader[0], part.at[1] + part.leader[1]];

  // The links of a group: round a ring, or from its server to everybody.
  const links = (group, ends, leader) => {
    if (ends.length < 2) return [];
    if (isServer(group)) return ends.filter((end) => end !== leader).map((end) => [leader, end]);
    const next = (place) => ends[(place + 1) % ends.length];
    return ends.length === 2 ? [[ends[0], ends[1]]] : ends.map((end, place) => [end, next(place)]);
  };

  const paint = (parent, box, x, y, depth) => {
    const { group } = box;
    const hue = look(depth).colour;
    draw(parent, "rect", { x, y, width: box.width, height: box.height, rx: 10, fill: hue, "fill-opacity": 0.06, stroke: hue, "stroke-opacity": 0.5 });
    draw(parent, "text", { x: x + 10, y: y + 18, fill: "var(--faint)" }, titleOf(group, depth === 0));
    for (const part of box.parts) paint(parent, part, x + part.at[0], y + part.at[1], depth + 1);
    const ends = box.parts.length ? box.parts.map(speaker) : box.spots.map((spot) => spot.at);
    const leader = ends.find((end) => end[0] === box.leader[0] && end[1] === box.leader[1]) || ends[0];
    for (const [from, to] of links(group, ends, leader)) {
      draw(parent, "line", { x1: x + from[0], y1: y + from[1], x2: x + to[0], y2: y + to[1], stroke: hue, "stroke-width": box.parts.length ? 3 : 1.5 });
    }
    for (const spot of box.spots) paintWorker(parent, box, spot, x, y, hue);
  };

  const paintWorker = (parent, box, { member, at }, x, y, hue) => {
    const isLeader = member.worker === box.group.leader;
    const place = draw(parent, "g", { tabindex: box.isNamed ? 0 : -1 });
    const radius = box.isNamed ? 15 : 3;
    draw(place, "circle", { cx: x + at[0], cy: y + at[1], r: radius, fill: isLeader ? hue : "var(--paper)", stroke: hue, "stroke-width": 1.5 });
    draw(place, "title", {}, `worker ${member.worker}${member.node ? ` on ${member.node}` : ""}${isLeader ? ", speaks for this group" : ""}${member.share == null ? "" : `, share ${member.share}`}`);
    if (!box.isNamed) return;
    const centred = { "text-anchor": "middle", x: x + at[0] };
    draw(place, "text", { ...centred, y: y + at[1] + 4.5, fill: isLeader ? "#fff" : "var(--ink)" }, member.worker);
    const below = [member.node, member.share == null ? null : member.share].filter((one) => one != null && one !== "").join(" · ");
    const name = below.length > 14 ? `${below.slice(0, 13)}…` : below;
    draw(place, "text", { ...centred, y: y + at[1] + 29, "font-size": 11, fill: "var(--faint)" }, name);
  };

  // Draws {topology, leader, compression, members: [{worker, node, share}], groups: [the same]}; `count`
  // says how many members or groups there are, where not all of them are given.
  gangline.structure = (element, tree) => {
    element.classList.add("structure");
    element.replaceChildren();
    const box = layout(tree);
    const picture = draw(element.appendChild(make("div", "scroll")), "svg", {
      viewBox: `0 0 ${box.width + 4} ${box.height + 4}`,
      width: box.width + 4,
      role: "img",
      "aria-label": "who exchanges with whom",
    });
    paint(picture, box, 2, 2, 0);
    return picture;
  };
})();
