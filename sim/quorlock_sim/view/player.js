// Plays the runs that stand as JSON in the same element. Instants are milliseconds of the run.
(() => {
  "use strict";
  const root = document.currentScript.closest(".ql-player");
  const runs = JSON.parse(root.querySelector(".ql-data").textContent);
  const lists = [...root.querySelectorAll(".ql-steps")];
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const NAMES = "AB";
  const PACE = 0.25; // milliseconds of the run in one of the reader, at speed 1
  const WIDTH = 420, CLIENT_Y = 46, NODE_Y = 186, STRIP_Y = 226;
  const SIGN = { acquire: "?", release: "−", yes: "✓", no: "✗" };

  let run, now, hold, last, frame = 0;

  // --- elements ------------------------------------------------------------------------------

  function make(name, attributes = {}, ...children) {
    const svg = "svg g rect circle line text title".split(" ").includes(name);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }
  const button = (text, act) => {
    const made = make("button", { type: "button" }, text);
    made.addEventListener("click", act);
    return made;
  };
  const picks = make("div", { class: "ql-picks", role: "group", "aria-label": "Runs" },
    ...runs.map((one, index) => button(one.title, () => choose(index))));
  const picture = make("svg", { role: "img" });
  const scrub = make("input", { type: "range", min: 0, step: 1, "aria-label": "Time in the run" });
  const play = button("Play", () => (frame ? pause() : start()));
  play.className = "ql-play";
  const speed = make("select", { "aria-label": "Speed" },
    ...[0.5, 1, 2, 4].map((value) => make("option", { value }, `${value}×`)));
  speed.value = "1";
  const clock = make("span", { class: "ql-clock" });
  const caption = make("p", { class: "ql-now", "aria-live": "polite" });
  const controls = make("div", { class: "ql-controls" }, play,
    button("Back", () => step(-1)), button("Next", () => step(1)), speed, clock);
  lists.forEach((list) => { list.querySelector("summary").textContent = "All steps of this run"; });
  const legend = make("p", { class: "ql-legend" },
    "?\u00a0asks for the lock   ✓\u00a0votes for it   ✗\u00a0refuses   −\u00a0releases");
  root.querySelector("style").after(picks, picture, legend, scrub, controls, caption);

  // --- time ----------------------------------------------------------------------------------

  const speedNow = () => Number(speed.value);
  const captionAt = (at) => run.captions.filter(([begin]) => begin <= at).length - 1;
  // A caption stays for as long as it takes to read.
  const reading = (index) => 900 + 40 * run.captions[index][1].length;

  function choose(index) {
    pause();
    run = runs[index];
    [...picks.children].forEach((one, i) => one.setAttribute("aria-pressed", String(i === index)));
    lists.forEach((list, i) => { list.hidden = i !== index; list.open = false; });
    scrub.max = run.end;
    moveTo(0);
  }

  function start() {
    if (now >= run.end) moveTo(0);
    hold = reading(captionAt(now)) / 2;
    last = undefined;
    play.textContent = "Pause";
    frame = requestAnimationFrame(tick);
  }

  function pause() {
    cancelAnimationFrame(frame);
    frame = 0;
    play.textContent = run && now >= run.end ? "Play again" : "Play";
  }

  function tick(stamp) {
    let left = (stamp - (last ?? stamp)) * speedNow();
    last = stamp;
    const waited = Math.min(hold, left);
    hold -= waited;
    left -= waited;
    if (left > 0) advance(left * PACE);
    frame = now < run.end ? requestAnimationFrame(tick) : 0;
    if (!frame) pause();
  }

  function advance(by) {
    const before = captionAt(now);
    const next = before + 1 < run.captions.length ? run.captions[before + 1][0] : run.end;
    moveTo(calm.matches ? next : Math.min(next, now + by));
    if (captionAt(now) > before) hold = reading(captionAt(now));
  }

  function step(by) {
    pause();
    const index = captionAt(now);
    const stops = [...run.captions.map(([at]) => at), run.end];
    moveTo(stops[now >= run.end && by < 0 ? index
      : Math.max(0, Math.min(stops.length - 1, index + by))]);
  }

  function moveTo(at) {
    now = at;
    scrub.value = now;
    const words = `${Math.round(now).toLocaleString("en")} ms`;
    scrub.setAttribute("aria-valuetext", words);
    clock.textContent = `${words} of ${run.end.toLocaleString("en")}`;
    say();
    draw();
    if (!frame) pause();
  }

  function say() {
    const index = captionAt(now), over = now >= run.end;
    const text = over ? run.verdict : run.captions[index][1];
    if (caption.textContent === text) return;
    caption.textContent = text;
    caption.classList.toggle("ql-bad", over && run.overlaps.length > 0);
    const items = [...lists[runs.indexOf(run)].querySelectorAll("li")];
    items.forEach((item) => item.removeAttribute("aria-current"));
    items[index].setAttribute("aria-current", "step");
  }

  scrub.addEventListener("input", () => { pause(); moveTo(Number(scrub.value)); });

  // --- the picture ---------------------------------------------------------------------------

  const during = ([begin, end]) => begin <= now && now < end;
  const state = (place) => (run.states.find(([p, , ...span]) => p === place && during(span)) || [])[1];
  const clientX = (index) => (run.writes.length ? [75, 205] : [130, 290])[index];
  const nodeX = (index) => (WIDTH * (index + 0.5)) / run.nodes;
  const STORE_X = 352;
  const write = (x, y, text, look = "") => make("text", { x, y, class: look }, text);
  const box = (x, y, width, look) => make("rect",
    { x: x - width / 2, y: y - 24, width, height: 48, rx: 6, class: `box ${look}` });

  function draw() {
    const height = STRIP_Y + 56;
    picture.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
    picture.setAttribute("aria-label", `${run.title}: ${caption.textContent}`);
    picture.replaceChildren(...wires(), ...clients(), ...nodes(), ...storage(), ...messages(), ...strip());
  }

  function* wires() {
    for (let client = 0; client < run.clients; client++)
      for (let node = 0; node < run.nodes; node++)
        yield make("line", { x1: clientX(client), y1: CLIENT_Y, x2: nodeX(node), y2: NODE_Y,
          class: `wire ${state(`c${client}n${node}`) || ""}` });
    for (const client of run.writes.length ? [0, 1] : [])
      yield make("line", { x1: clientX(client), y1: CLIENT_Y, x2: STORE_X, y2: CLIENT_Y, class: "wire" });
  }

  function* clients() {
    const two = run.overlaps.some(during);
    for (let client = 0; client < run.clients; client++) {
      const x = clientX(client), paused = state(`c${client}`);
      const held = run.leases.some(([who, ...span]) => who === client && during(span));
      yield box(x, CLIENT_Y, 104, (held ? `held${client}` : "") + (paused ? " out" : ""));
      yield write(x, CLIENT_Y - 4, `client ${NAMES[client]}`, "name");
      yield write(x, CLIENT_Y + 14, paused || (held ? "holds the lock" : "no lock"), "small");
    }
    if (two) yield write((clientX(0) + clientX(1)) / 2, 15, "two holders", "alarm");
  }

  function* nodes() {
    for (let node = 0; node < run.nodes; node++) {
      const x = nodeX(node), away = state(`n${node}`);
      const key = run.keys.find(([where, , ...span]) => where === node && during(span));
      yield box(x, NODE_Y, 76, (key ? `held${key[1]}` : "") + (away ? " out" : ""));
      yield write(x, NODE_Y - 4, `node ${node + 1}`, "name");
      yield write(x, NODE_Y + 14, away || (key ? `key of ${NAMES[key[1]]}` : "no key"), "small");
    }
  }

  function* storage() {
    if (!run.writes.length) return;
    const done = run.writes.filter(([, , at]) => at <= now);
    const latest = done.at(-1), seen = done.filter((one) => one[4]).at(-1);
    const refused = latest && !latest[4];
    yield box(STORE_X, CLIENT_Y, 126, refused ? "refuses" : "");
    yield write(STORE_X, CLIENT_Y - 4, "storage", "name");
    yield write(STORE_X, CLIENT_Y + 14, seen ? `fence ${seen[3]}` : "no fence yet", "small");
    if (refused) yield write(STORE_X, 15, `refused: ${latest[3]}`, "alarm");
  }

  function* dot(from, to, begin, end, look, sign) {
    if (begin < 0 || end <= begin || !during([begin, end])) return;
    // The network delays this message: it waits half way.
    const delayed = end - begin > 2 * run.latency;
    const part = delayed ? Math.min(0.5, (now - begin) / run.latency) : (now - begin) / (end - begin);
    const x = from[0] + (to[0] - from[0]) * part, y = from[1] + (to[1] - from[1]) * part;
    yield make("circle", { cx: x, cy: y, r: 9, class: look });
    yield write(x, y + 4.5, sign, "sign");
  }

  function* messages() {
    for (const [client, node, command, sent, done, granted, read] of run.messages) {
      const top = [clientX(client), CLIENT_Y + 26], bottom = [nodeX(node), NODE_Y - 26];
      yield* dot(top, bottom, sent, done, `c${client}`, SIGN[command] || "·");
      const vote = granted ? "yes" : "no";
      yield* dot(bottom, top, done, read, command === "release" ? `c${client}` : vote,
        command === "release" ? "·" : SIGN[vote]);
    }
    for (const [client, sent, at, fence] of run.writes)
      yield* dot([clientX(client) + 52, CLIENT_Y], [STORE_X - 63, CLIENT_Y], sent, at, `c${client}`, "w");
  }

  function* strip() {
    const left = 24, scale = (WIDTH - left) / run.end, x = (at) => left + at * scale;
    const bar = (y, begin, end, look, title) => make("rect",
      { x: x(begin), y, width: Math.max(1, (end - begin) * scale), height: 20, class: look },
      make("title", {}, title));
    for (let client = 0; client < run.clients; client++) {
      const y = STRIP_Y + 28 * client;
      yield write(4, y + 15, NAMES[client], "name left");
      yield make("rect", { x: left, y, width: WIDTH - left, height: 20, class: "lane" });
      for (const [who, begin, end] of run.leases)
        if (who === client) yield bar(y, begin, end, `c${client}`, `${NAMES[client]} holds the lock`);
      for (const [place, what, begin, end] of run.states)
        if (place === `c${client}`) yield bar(y, begin, end, "stopped", what);
      for (const [begin, end] of run.overlaps) yield bar(y, begin, end, "both", "two holders");
    }
    yield make("line", { x1: x(now), x2: x(now), y1: STRIP_Y - 5, y2: STRIP_Y + 53, class: "head" });
  }

  choose(0);
})();
