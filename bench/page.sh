#!/usr/bin/env bash
# How fast the page of `weft sim --html` pans in Chromium: milliseconds of drawing a frame at several
# zooms, and the frames a second that the browser shows while it pans through the step at ten zooms.
#
#   bench/page.sh [MICROBATCHES] [WEFT]     default: 4096, about 1.1 million ops
set -euo pipefail

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
microbatches=${1:-4096} weft=${2:-$here/../build/weft}
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
"$weft" sim --model gpt2-nano --topology dgx-a100 --gpus 4 --pipeline-model-parallel-size 4 \
  --global-batch-size "$microbatches" --executor clock --html "$folder/page.html" >/dev/null
cat >>"$folder/page.html" <<'PROBE'
<script>(async () => {
  // Frames a second of pans of 30 frames, each at half the seconds of the one before.
  const shown = async () => {
    const t = window.weftTimelines[0], view = window.weftCommon, frame = () =>
      new Promise((done) => requestAnimationFrame(done)), rates = [];
    t.wholeStep();
    for (let zoom = 0; zoom < 10; zoom++) {
      t.zoom(0.5, 110);
      await frame();
      const from = performance.now();
      for (let i = 0; i < 30; i++) { t.move((view.t1 - view.t0) / 50, 0); await frame(); }
      rates.push(30000 / (performance.now() - from));
    }
    return `${Math.min(...rates).toFixed(0)} to ${Math.max(...rates).toFixed(0)} frames a second`;
  };
  while (!document.documentElement.dataset.weft) await new Promise((r) => setTimeout(r, 20));
  const ops = window.weftTimelines[0].head.rows.reduce((n, r) => n + r.begin.length, 0);
  const frames = (await window.weftPan(200)).sort((a, b) => a - b);
  console.log(`WEFT ${ops} ops: ${frames[100].toFixed(1)} ms a frame (median), ` +
              `${frames[190].toFixed(1)} ms (95 %), ${frames[199].toFixed(1)} ms (most); ` +
              (await shown()));
})();</script>
PROBE
# The browser logs the line of the page and does not end by itself.
timeout "${WEFT_PAGE_SECONDS:-60}" chromium --headless --no-sandbox --disable-gpu --disable-quic \
  --no-first-run --disable-background-networking --disable-component-update --disable-sync \
  --enable-logging=stderr --user-data-dir="$folder/browser" --window-size=1400,1000 \
  --remote-debugging-port=0 "file://$folder/page.html" 2>&1 |
  { grep -m 1 -o 'WEFT [^"]*' && pkill -f -- "$folder/browser" || true; }
