#!/usr/bin/env bash
# How fast the page of `weft sim --html` pans in Chromium: milliseconds of each frame, at ten zooms.
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
  while (!document.documentElement.dataset.weft) await new Promise((r) => setTimeout(r, 20));
  const ops = window.weftTimelines[0].head.rows.reduce((n, r) => n + r.begin.length, 0);
  const frames = (await window.weftPan(200)).sort((a, b) => a - b);
  console.log(`WEFT ${ops} ops: ${frames[100].toFixed(1)} ms a frame (median), ` +
              `${frames[190].toFixed(1)} ms (95 %), ${frames[199].toFixed(1)} ms (most)`);
})();</script>
PROBE
# The browser logs the line of the page and does not end by itself.
timeout "${WEFT_PAGE_SECONDS:-60}" chromium --headless --no-sandbox --disable-gpu --disable-quic \
  --no-first-run --disable-background-networking --disable-component-update --disable-sync \
  --enable-logging=stderr --user-data-dir="$folder/browser" --window-size=1400,1000 \
  --remote-debugging-port=0 "file://$folder/page.html" 2>&1 |
  { grep -m 1 -o 'WEFT [^"]*' && pkill -f -- "$folder/browser" || true; }
