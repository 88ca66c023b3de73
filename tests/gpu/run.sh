#!/usr/bin/env bash
# Everything that needs a GPU, in two runs: `run.sh --run A RESULTS` (three minutes) says whether the kernels
# work on this card, `run.sh --run B RESULTS` (nine minutes) measures.  `run.sh --help` lists the flags, and
# bench/results/README.md describes the results.  The work is done by contact/, in Python 3, which every machine
# with PyTorch has.
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
command -v python3 >/dev/null || {
  echo 'run.sh: found no python3, wanted Python 3.9 or newer' >&2
  exit 2
}
exec python3 -B "$here/contact/main.py" "$@"
