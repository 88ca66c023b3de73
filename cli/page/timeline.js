// The timeline of a step: zoom, pan, and what an op is and waits for. Reads the arrays that
// cli/timeline_page.c writes; cli/timeline_page.h describes them. Plain canvas, no other file.
"use strict";
(async () => {
  const NONE = 0xffff; // no layer, no microbatch
  const GPU = 0; // lane of kernels
  const LEFT = 110, HEAD = 22, WIDE = 20, THIN = 9, GAP = 6, MEMORY = 70; // pixels
  const MOST = 560; // largest height of the lanes
  const TYPES = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f32: Float32Array,
                  f64: Float64Array };
  const byId = (id) => document.getElementById(id);
  const head = JSON.parse(byId("weft-head").textContent);

  // ------------------------------------------------------------------------ data

  async function unpack() {
    const text = atob(byId("weft-data").textContent);
    const packed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(plain).arrayBuffer();
  }

  // Gives every section to the role or row that it belongs to: a role begins with `kind`, a row
  // with `begin`.
  function divide(block) {
    let at = 0, into = null, role = 0, row = 0;
    for (const s of head.sections) {
      if (s.name === "kind") into = head.roles[role++];
      if (s.name === "begin") into = head.rows[row++];
      if (s.name === "path_row") into = head.path = {};
      const type = TYPES[s.type];
      into[s.name] = new type(block, at, s.n);
      at += Math.ceil(s.n * type.BYTES_PER_ELEMENT / 8) * 8;
    }
  }

  // --------------------------------------------------------------------- lanes

  // Ops of a lane that take time, in order, and a pyramid of ever coarser boxes over them: level k
  // has a box for 2^k ops, with its begin, its end, the seconds in which ops run, and the op that
  // takes longest, whose colour the box has.
  function makeLane(row, lane, ops) {
    const source = head.rows[row], levels = [];
    let box = { n: ops.length, begin: new Float64Array(ops.length), end: new Float64Array(ops.length),
                busy: new Float64Array(ops.length), op: Uint32Array.from(ops) };
    for (let i = 0; i < ops.length; i++) {
      box.begin[i] = source.begin[ops[i]];
      box.end[i] = source.end[ops[i]];
      box.busy[i] = box.end[i] - box.begin[i];
    }
    levels.push(box);
    while (box.n > 64) {
      const n = Math.ceil(box.n / 2), up = { n, begin: new Float64Array(n), end: new Float64Array(n),
                                             busy: new Float64Array(n), op: new Uint32Array(n) };
      for (let i = 0; i < n; i++) {
        const a = 2 * i, b = Math.min(a + 1, box.n - 1);
        up.begin[i] = box.begin[a];
        up.end[i] = Math.max(box.end[a], box.end[b]);
        up.busy[i] = box.busy[a] + (b > a ? box.busy[b] : 0);
        up.op[i] = box.busy[b] > box.busy[a] ? box.op[b] : box.op[a];
      }
      levels.push(up);
      box = up;
    }
    return { row, lane, levels, y: 0, height: lane === GPU ? WIDE : THIN };
  }

  function lanesOfRow(row) {
    const source = head.rows[row], role = head.roles[source.role];
    const ops = head.lanes.map(() => []);
    for (let i = 0; i < role.kind.length; i++)
      if (source.end[i] > source.begin[i]) ops[role.lane[i]].push(i);
    return ops.map((list, lane) => list.length ? makeLane(row, lane, list) : null).filter(Boolean);
  }

  let lanes = [], whole = 0; // all lanes, and the sum of their heights
  function layOut() {
    let y = 0;
    for (let row = 0; row < head.rows.length; row++) {
      for (const lane of lanesOfRow(row)) {
        lane.y = y;
        y += lane.height + 1;
        lanes.push(lane);
      }
      y += GAP;
    }
    whole = y;
  }

  // Gives each lane a lane of those of its ops that are on the critical path.
  function layPath() {
    if (!head.path) return;
    const lists = new Map();
    for (let i = 0; i < head.path.path_op.length; i++) {
      const row = head.path.path_row[i], op = head.path.path_op[i];
      const key = row * head.lanes.length + head.roles[head.rows[row].role].lane[op];
      if (!lists.has(key)) lists.set(key, []);
      lists.get(key).push(op);
    }
    for (const lane of lanes) {
      const ops = lists.get(lane.row * head.lanes.length + lane.lane);
      if (!ops) continue;
      lane.path = makeLane(lane.row, lane.lane, ops.sort((a, b) => a - b));
      lane.path.height = Math.min(4, lane.height);
      lane.path.marks = true;
    }
  }

  // First index whose end is after t.
  function firstAfter(box, t) {
    let low = 0, high = box.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (box.end[middle] > t) high = middle; else low = middle + 1;
    }
    return low;
  }

  // ---------------------------------------------------------------------- memory

  // Memory in use on a row over time, in total and for each part of head.parts (weights, gradients
  // ...). It changes only at the begin and end of ops.
  function memoryOf(row) {
    const source = head.rows[row], role = head.roles[source.role], events = [];
    if (source.memory) return source.memory;
    for (let i = 0; i < role.size.length; i++) {
      events.push([source.begin[role.first[i]], role.part[i], role.size[i]]);
      events.push([source.end[role.last[i]], role.part[i], -role.size[i]]);
    }
    events.sort((a, b) => a[0] - b[0] || a[2] - b[2]); // bytes are freed before others are taken
    const n = events.length, parts = head.parts.length;
    const memory = { time: new Float64Array(n), parts: new Float64Array(n * parts),
                     total: new Float64Array(n), most: 0 };
    const now = new Float64Array(parts);
    let total = 0;
    for (let i = 0; i < n; i++) {
      now[events[i][1]] += events[i][2];
      total += events[i][2];
      memory.time[i] = events[i][0];
      memory.parts.set(now, i * parts);
      memory.total[i] = total;
      memory.most = Math.max(memory.most, total);
    }
    memory.highest = highest(memory.total);
    return source.memory = memory;
  }

  // Returns, for each block of 2, 4, 8 ... events, the event with the most bytes.
  function highest(total) {
    const levels = [];
    for (let n = total.length; n > 1; n = Math.ceil(n / 2)) {
      const under = levels[levels.length - 1], up = new Uint32Array(Math.ceil(n / 2));
      for (let i = 0; i < up.length; i++) {
        const a = under ? under[2 * i] : 2 * i, b = 2 * i + 1 < n ? (under ? under[2 * i + 1] : 2 * i + 1) : a;
        up[i] = total[b] > total[a] ? b : a;
      }
      levels.push(up);
    }
    return levels;
  }

  // The event with the most bytes among first..last.
  function mostOf(memory, first, last) {
    let best = first;
    for (let i = first; i <= last;) {
      let level = 0; // level of the largest block that begins at i and ends at or before `last`
      while (level < memory.highest.length && i % 2 ** (level + 1) === 0 && i + 2 ** (level + 1) - 1 <= last)
        level++;
      const at = level ? memory.highest[level - 1][i / 2 ** level] : i;
      if (memory.total[at] > memory.total[best]) best = at;
      i += 2 ** level;
    }
    return best;
  }

  // Index of the last event at or before t; -1: none.
  function eventAt(memory, t) {
    let low = 0, high = memory.time.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (memory.time[middle] <= t) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  // ----------------------------------------------------------------------- words

  function quantity(value, unit) {
    if (!(Math.abs(value) > 0)) return `0 ${unit}`;
    const steps = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""],
                   [1e-3, "m"], [1e-6, "u"], [1e-9, "n"]];
    const [size, prefix] = steps.find(([s]) => Math.abs(value) >= s * 0.9995) || steps[8];
    return `${Number((value / size).toPrecision(4))} ${prefix}${unit}`;
  }

  // As weft_op_label() of core/program/program.h: "L3 qkv m5".
  function label(row, op) {
    const role = head.roles[head.rows[row].role];
    const layer = role.layer[op] === NONE ? "" : `L${role.layer[op]} `;
    const micro = role.micro[op] === NONE ? "" : ` m${role.micro[op]}`;
    return layer + role.names[role.name[op]] + micro;
  }

  const rowName = (row) => {
    const r = head.rows[row];
    return `stage ${r.role}, rank ${r.rank}${r.ranks > 1 ? ` (of ${r.ranks} alike)` : ""}`;
  };

  // -------------------------------------------------------------------- predecessor

  // Returns the op for which `op` waited: the one that ends last among the dependencies of `op` and
  // the previous op of its lane. `how` says which of these it is; `gap` is the time from its end to
  // the begin of `op`.
  function predecessor(row, op) {
    const source = head.rows[row], role = head.roles[source.role];
    let best = -1, how = "";
    const offer = (other, word) => {
      if (other >= 0 && (best < 0 || source.end[other] > source.end[best])) { best = other; how = word; }
    };
    for (let i = role.deps[op]; i < role.deps[op + 1]; i++) offer(role.after[i], "a dependency");
    for (let i = op - 1; i >= 0; i--)
      if (role.lane[i] === role.lane[op]) { offer(i, "the op before it on its lane"); break; }
    const gap = best < 0 ? source.begin[op] : source.begin[op] - source.end[best];
    const late = gap > 1e-9 * head.seconds && gap > 1e-9;
    return { op: best, how, gap: late ? gap : 0, other: head.lanes[role.lane[op]] !== "gpu" };
  }

  // ------------------------------------------------------------------------ state

  const canvas = document.querySelector("#weft-timeline canvas"), pen = canvas.getContext("2d");
  const view = { t0: 0, t1: head.seconds, y: 0 };
  let width = 800, height = 400, hover = null, kept = null, colours = "phase", found = null;
  let asked = false, critical = false;

  function draw() {
    if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; paint(); }); }
  }
  const x = (t) => LEFT + (t - view.t0) / (view.t1 - view.t0) * (width - LEFT);
  const time = (px) => view.t0 + (px - LEFT) / (width - LEFT) * (view.t1 - view.t0);

  function clamp() {
    const span = Math.min(Math.max(view.t1 - view.t0, 1e-8), head.seconds);
    view.t0 = Math.min(Math.max(view.t0, 0), head.seconds - span);
    view.t1 = view.t0 + span;
    view.y = Math.min(Math.max(view.y, 0), Math.max(0, whole - (height - HEAD - MEMORY)));
  }
  function zoom(factor, px = LEFT + (width - LEFT) / 2) {
    const at = time(px), span = (view.t1 - view.t0) * factor;
    const part = (px - LEFT) / (width - LEFT);
    view.t0 = at - span * part;
    view.t1 = view.t0 + span;
    clamp();
    draw();
  }
  function move(seconds, pixels) {
    const span = view.t1 - view.t0;
    view.t0 = Math.min(Math.max(view.t0 + seconds, 0), head.seconds - span);
    view.t1 = view.t0 + span;
    view.y += pixels;
    clamp();
    draw();
  }

  // ---------------------------------------------------------------------- painting

  function colourOf(lane, op) {
    const role = head.roles[head.rows[lane.row].role];
    if (lane.marks) return inkNow;
    if (colours === "kind") return head.palette[role.kind[op] % head.palette.length];
    return lane.lane === GPU ? head.phases[role.phase[op]].colour : head.transfer;
  }

  let inPen = "", inkNow = "#000"; // colour that the pen has; colour of text

  // Draws box i of a level, or the two boxes under it if it is wide and has gaps.
  function paintBox(lane, top, level, i) {
    const box = lane.levels[level];
    const left = Math.max(x(box.begin[i]), LEFT), right = Math.min(x(box.end[i]), width);
    const share = level ? box.busy[i] / Math.max(box.end[i] - box.begin[i], 1e-30) : 1;
    if (level && share < 0.97 && right - left > 1.5) {
      const under = lane.levels[level - 1];
      for (let k = 2 * i; k < Math.min(2 * i + 2, under.n); k++)
        if (under.end[k] > view.t0 && under.begin[k] < view.t1) paintBox(lane, top, level - 1, k);
      return;
    }
    const colour = colourOf(lane, box.op[i]);
    if (colour !== inPen) pen.fillStyle = inPen = colour;
    const dim = found && !matches(lane.row, box.op[i]) ? 0.15 : critical && !lane.marks ? 0.4 : 1;
    pen.globalAlpha = dim * Math.max(0.2, share);
    pen.fillRect(left, top, Math.max(right - left, 0.7), lane.height);
    if (!level && lane.lane === GPU && !lane.marks && right - left > 46) {
      pen.globalAlpha = 1;
      pen.fillStyle = inPen = "#14181f";
      pen.fillText(label(lane.row, box.op[i]).slice(0, (right - left) / 6.5), left + 3, top + 14);
    }
  }

  function paintLane(lane, top) {
    let level = 0;
    // choose the finest level whose boxes in view are at most as many as the pixels
    for (; level + 1 < lane.levels.length; level++) {
      const box = lane.levels[level];
      if (firstAfter(box, view.t1) - firstAfter(box, view.t0) <= width - LEFT) break;
    }
    const box = lane.levels[level];
    inPen = "";
    for (let i = firstAfter(box, view.t0); i < box.n && box.begin[i] < view.t1; i++)
      paintBox(lane, top, level, i);
    pen.globalAlpha = 1;
  }

  function matches(row, op) {
    const role = head.roles[head.rows[row].role];
    return label(row, op).toLowerCase().includes(found) ||
           head.kinds[role.kind[op]].word.includes(found);
  }

  function paintRuler(ink, line) {
    const span = view.t1 - view.t0;
    let step = 10 ** Math.floor(Math.log10(span));
    while ((width - LEFT) * step / span > 160) step /= 2;
    pen.fillStyle = ink;
    pen.strokeStyle = line;
    for (let t = Math.ceil(view.t0 / step) * step; t <= view.t1; t += step) {
      const at = Math.round(x(t)) + 0.5;
      pen.beginPath();
      pen.moveTo(at, HEAD);
      pen.lineTo(at, height - MEMORY);
      pen.stroke();
      pen.fillText(quantity(t, "s"), at + 3, 15);
    }
  }

  function paintNames(ink, soft) {
    let before = -1;
    for (const lane of lanes) {
      const top = HEAD + lane.y - view.y;
      if (top + lane.height < HEAD || top > height - MEMORY) continue;
      pen.fillStyle = lane.row === before ? soft : ink;
      pen.fillText(lane.row === before ? head.lanes[lane.lane]
                   : `stage ${head.rows[lane.row].role} r${head.rows[lane.row].rank}`,
                   lane.row === before ? 60 : 4, top + Math.min(14, lane.height + 1));
      before = lane.row;
    }
  }

  function paintMemory(ink, soft, line) {
    const row = (kept || hover || { row: 0 }).row, memory = memoryOf(row);
    const top = height - MEMORY + 6, tall = MEMORY - 10, scale = tall / (memory.most || 1);
    const parts = head.parts.length;
    pen.fillStyle = soft;
    pen.fillText(`memory r${head.rows[row].rank}`, 4, top + 12);
    pen.fillText(quantity(memory.most, "B"), 4, top + 28);
    for (let px = LEFT; px < width; px++) {
      const first = Math.max(eventAt(memory, time(px)), 0);
      const best = mostOf(memory, first, Math.max(eventAt(memory, time(px + 1)), first));
      let y = top + tall;
      for (let part = 0; part < parts; part++) {
        const bytes = memory.parts[best * parts + part] * scale;
        if (bytes < 0.2) continue;
        pen.fillStyle = head.parts[part].colour;
        pen.fillRect(px, y - bytes, 1, bytes);
        y -= bytes;
      }
    }
    pen.strokeStyle = line;
    pen.strokeRect(LEFT, top, width - LEFT - 1, tall);
  }

  function box(mark, colour) {
    const lane = lanes.find((l) => l.row === mark.row && l.lane === laneOf(mark));
    if (!lane) return;
    const source = head.rows[mark.row], top = HEAD + lane.y - view.y;
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.strokeRect(x(source.begin[mark.op]), top, Math.max(x(source.end[mark.op]) -
                   x(source.begin[mark.op]), 2), lane.height);
    pen.lineWidth = 1;
  }
  const laneOf = (mark) => head.roles[head.rows[mark.row].role].lane[mark.op];

  function paint() {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink"), soft = style.getPropertyValue("--soft");
    const line = style.getPropertyValue("--line");
    inkNow = ink.trim();
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    pen.save();
    pen.beginPath();
    pen.rect(0, HEAD, width, height - HEAD - MEMORY);
    pen.clip();
    for (const lane of lanes) {
      const top = HEAD + lane.y - view.y;
      if (top + lane.height < HEAD || top > height - MEMORY) continue;
      paintLane(lane, top);
      if (critical && lane.path) paintLane(lane.path, top + lane.height - lane.path.height);
    }
    paintNames(ink, soft);
    const mark = kept || hover;
    if (mark) {
      box(mark, ink);
      const why = predecessor(mark.row, mark.op);
      if (why.op >= 0) box({ row: mark.row, op: why.op }, "#d55e00");
    }
    pen.restore();
    paintRuler(soft, line);
    paintMemory(ink, soft, line);
  }

  // ------------------------------------------------------------------------- facts

  function facts(mark) {
    if (!mark) { byId("weft-facts").textContent = ""; return; }
    const source = head.rows[mark.row], role = head.roles[source.role], op = mark.op;
    const begin = source.begin[op], seconds = source.end[op] - begin, kind = head.kinds[role.kind[op]];
    const why = predecessor(mark.row, op), memory = memoryOf(mark.row);
    const at = eventAt(memory, begin), parts = head.parts.length;
    const held = head.parts.map((p, i) => [p.word, at < 0 ? 0 : memory.parts[at * parts + i]])
      .filter((p) => p[1] > 0).map((p) => `${p[0]} ${quantity(p[1], "B")}`).join(", ");
    const safe = (t) => t.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
    const rate = role.flops[op] > 0 ? `${quantity(role.flops[op], "FLOP")}, ` +
      `${quantity(role.flops[op] / seconds, "FLOP/s")}; ` : "";
    const moved = role.bytes[op] > 0 && seconds > 0;
    let wait = why.op < 0 ? "it waits for nothing on this rank"
      : `it waited for <b>${safe(label(mark.row, why.op))}</b>, ${why.how}`;
    if (why.gap)
      wait += `; it began ${quantity(why.gap, "s")} later: ` +
        (why.other ? "other ranks came later, or the host had not launched it"
         : "the host had not launched it yet");
    byId("weft-facts").innerHTML =
      `<b>${safe(label(mark.row, op))}</b> <span class="soft">op ${op}, ${safe(kind.word)}: ` +
      `${safe(kind.doc)}; lane ${head.lanes[role.lane[op]]}, ${rowName(mark.row)}</span><br>` +
      `${quantity(seconds, "s")}, from ${quantity(begin, "s")} to ${quantity(source.end[op], "s")}<br>` +
      (moved ? `${rate}${quantity(role.bytes[op], "B")}, ` +
               `${quantity(role.bytes[op] / seconds, "B/s")}<br>` : "") +
      `${wait}<br>memory when it begins: ${held}`;
  }

  function opAt(px, py) {
    if (px < LEFT || py < HEAD || py > height - MEMORY) return null;
    const y = py - HEAD + view.y, lane = lanes.find((l) => y >= l.y && y <= l.y + l.height);
    if (!lane) return null;
    const t = time(px), fine = lane.levels[0], i = firstAfter(fine, t);
    const slack = 2 * (view.t1 - view.t0) / (width - LEFT);
    if (i < fine.n && fine.begin[i] <= t + slack) return { row: lane.row, op: fine.op[i] };
    return null;
  }

  function keep(mark) {
    kept = mark;
    facts(kept || hover);
    if (kept) {
      const source = head.rows[kept.row], b = source.begin[kept.op], e = source.end[kept.op];
      const span = view.t1 - view.t0;
      if (e < view.t0 || b > view.t1) { view.t0 = (b + e) / 2 - span / 2; view.t1 = view.t0 + span; }
      const lane = lanes.find((l) => l.row === kept.row && l.lane === laneOf(kept));
      if (lane && (lane.y < view.y || lane.y + lane.height > view.y + height - HEAD - MEMORY))
        view.y = lane.y - 40;
      clamp();
    }
    draw();
  }

  // Moves the selection to the next (1) or previous (-1) op of the same lane. Without a selection,
  // selects the first op in view.
  function step(by) {
    if (!kept) {
      const lane = lanes[0], i = Math.min(firstAfter(lane.levels[0], view.t0), lane.levels[0].n - 1);
      keep({ row: lane.row, op: lane.levels[0].op[i] });
      return;
    }
    const lane = lanes.find((l) => l.row === kept.row && l.lane === laneOf(kept));
    const fine = lane.levels[0];
    let i = firstAfter(fine, head.rows[kept.row].begin[kept.op]) + by;
    i = Math.min(Math.max(i, 0), fine.n - 1);
    keep({ row: kept.row, op: fine.op[i] });
  }

  // Shows or hides the critical path.
  function showPath(on = !critical) {
    critical = on && Boolean(head.path);
    byId("weft-path").setAttribute("aria-pressed", String(critical));
    draw();
  }

  // The next (1) or previous (-1) op of the critical path, from the kept op or the begin of the view.
  function alongPath(by) {
    if (!head.path) return;
    const n = head.path.path_op.length, row = head.path.path_row, op = head.path.path_op;
    const from = kept ? head.rows[kept.row].begin[kept.op] : view.t0;
    let low = 0, high = n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (head.rows[row[middle]].begin[op[middle]] < from) low = middle + 1; else high = middle;
    }
    const on = kept && low < n && row[low] === kept.row && op[low] === kept.op;
    const at = Math.min(Math.max(by > 0 ? low + (on ? 1 : 0) : low - 1, 0), n - 1);
    showPath(true);
    keep({ row: row[at], op: op[at] });
  }

  function back() {
    const mark = kept || hover, why = mark && predecessor(mark.row, mark.op);
    if (why && why.op >= 0) keep({ row: mark.row, op: why.op });
  }

  // ------------------------------------------------------------------------- input

  const wholeStep = () => { view.t0 = 0; view.t1 = head.seconds; view.y = 0; clamp(); draw(); };
  const KEYS = {
    ArrowLeft: () => move(-(view.t1 - view.t0) / 8, 0),
    ArrowRight: () => move((view.t1 - view.t0) / 8, 0),
    ArrowUp: () => move(0, -40), ArrowDown: () => move(0, 40),
    "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
    0: wholeStep, n: () => step(1), p: () => step(-1), b: back, c: () => showPath(),
    "]": () => alongPath(1), "[": () => alongPath(-1),
    Escape: () => keep(null),
  };
  canvas.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey) move(0, event.deltaY);
    else zoom(Math.exp(event.deltaY * 0.002), event.offsetX);
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY, moved: 0 };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
      drag = { x: event.offsetX, y: event.offsetY, moved: drag.moved + Math.abs(dx) + Math.abs(dy) };
      move(-dx * (view.t1 - view.t0) / (width - LEFT), -dy);
      return;
    }
    hover = opAt(event.offsetX, event.offsetY);
    if (!kept) { facts(hover); draw(); }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && drag.moved < 4) keep(opAt(event.offsetX, event.offsetY));
    drag = null;
  });
  byId("weft-in").onclick = () => zoom(0.6);
  byId("weft-out").onclick = () => zoom(1 / 0.6);
  byId("weft-all").onclick = wholeStep;
  byId("weft-why").onclick = back;
  byId("weft-path").onclick = () => showPath();
  byId("weft-colours").onchange = (event) => { colours = event.target.value; draw(); };
  byId("weft-find").oninput = (event) => { found = event.target.value.trim().toLowerCase() || null; draw(); };

  function resize() {
    const ratio = window.devicePixelRatio || 1;
    width = canvas.clientWidth;
    height = Math.min(whole, MOST) + HEAD + MEMORY;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    clamp();
    paint();
  }

  // Milliseconds of each frame of a pan at several zooms, for tests/cli/test_page.c.
  window.weftPan = async (frames) => {
    const at = [];
    for (let i = 0; i < frames; i++) {
      if (i % 10 === 0) zoom(i % 40 ? 0.5 : 1e9);
      move((view.t1 - view.t0) / 50, 0);
      const from = performance.now();
      paint();
      at.push(performance.now() - from);
      await new Promise((done) => setTimeout(done, 0));
    }
    return at;
  };
  window.weftTimeline = { view, head, keep, step, back, showPath, alongPath, facts: () => byId("weft-facts").textContent };

  divide(await unpack());
  layOut();
  layPath();
  byId("weft-path").hidden = !head.path;
  resize();
  window.addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.documentElement.dataset.weft = `${lanes.length} lanes`;
})().catch((error) => { document.documentElement.dataset.weft = `error: ${error.message}`; throw error; });
