// The timelines of a page, one for each job, on one axis of time: the tools above them act on all.
"use strict";
(async () => {
  const roots = [...document.querySelectorAll(".weft-job")], byId = (id) => document.getElementById(id);
  const seconds = Math.max(...roots.map((root) =>
    JSON.parse(root.querySelector(".weft-head").textContent).seconds));
  const common = { t0: 0, t1: seconds, seconds, cursor: -1, colours: "phase", found: null,
                   critical: false, same: byId("weft-tools").dataset.same === "1", timelines: [],
                   jobs: roots.length, active: null };

  // Shows or hides the critical paths.
  common.showPath = (on = !common.critical) => {
    common.critical = on && common.timelines.some((timeline) => timeline.head.path);
    byId("weft-path").setAttribute("aria-pressed", String(common.critical));
    common.timelines.forEach((timeline) => timeline.ask());
  };

  for (const root of roots) common.timelines.push(await weftTimeline(root, common));
  const all = (act) => common.timelines.forEach(act), active = () => common.active || common.timelines[0];
  const redraw = () => all((timeline) => timeline.ask());
  byId("weft-in").onclick = () => active().zoom(0.6);
  byId("weft-out").onclick = () => active().zoom(1 / 0.6);
  byId("weft-all").onclick = () => all((timeline) => timeline.wholeStep());
  byId("weft-why").onclick = () => active().back();
  byId("weft-path").onclick = () => common.showPath();
  byId("weft-path").hidden = !common.timelines.some((timeline) => timeline.head.path);
  byId("weft-colours").onchange = (event) => { common.colours = event.target.value; redraw(); };
  byId("weft-find").oninput = (event) => {
    common.found = event.target.value.trim().toLowerCase() || null;
    redraw();
  };
  const resize = () => all((timeline) => timeline.resize());
  window.addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  resize();

  // Milliseconds of each frame of a pan at several zooms, for tests/cli/test_page.c and bench/page.sh.
  window.weftPan = async (frames) => {
    const at = [];
    for (let i = 0; i < frames; i++) {
      if (i % 10 === 0) active().zoom(i % 40 ? 0.5 : 1e9);
      active().move((common.t1 - common.t0) / 50, 0);
      const from = performance.now();
      all((timeline) => timeline.paint());
      at.push(performance.now() - from);
      await new Promise((done) => setTimeout(done, 0));
    }
    return at;
  };
  window.weftTimelines = common.timelines;
  window.weftCommon = common;
  document.documentElement.dataset.weft =
    `${common.timelines.reduce((n, timeline) => n + timeline.lanes, 0)} lanes`;
})().catch((error) => { document.documentElement.dataset.weft = `error: ${error.message}`; throw error; });
