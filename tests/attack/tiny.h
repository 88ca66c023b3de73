/* tiny.h - training runs of a few thousand parameters in a folder of attack.h, and the files and
 * numbers that they write. */
#pragma once
#include "tests/attack/attack.h"

/* Command line of a training run of a model with one layer. A checkpoint of this run has about 60
 * kB. */
#define TINY                                                                                       \
  "train --model gpt2-nano --num-layers 1 --hidden-size 8 --num-attention-heads 1 "                \
  "--num-query-groups 1 --kv-channels 8 --ffn-hidden-size 8 --seq-length 16 --data data.txt "      \
  "--global-batch-size 2 --json"

/* Lists all files under `folder`: sorted paths relative to `folder`. The caller unrefs the
 * array. */
GPtrArray *tiny_files (const char *folder);

/* Returns the JSON lines of a run without times and rates, which differ between equal runs. The
 * caller frees the text. */
char *tiny_numbers (const char *out);
