/* tiny.h - training runs of a few thousand parameters in a folder of attack.h, and what they leave
 * there. */
#pragma once
#include "tests/attack/attack.h"

/* A checkpoint of this run has about 60 kB; the flags of a model of one layer. */
#define TINY                                                                                       \
  "train --model gpt2-nano --num-layers 1 --hidden-size 8 --num-attention-heads 1 "                \
  "--num-query-groups 1 --kv-channels 8 --ffn-hidden-size 8 --seq-length 16 --data data.txt "      \
  "--global-batch-size 2 --json"

/* All files under a folder by their paths relative to it, sorted. The caller unrefs the array. */
GPtrArray *tiny_files (const char *folder);

/* The JSON lines of a run without what differs between equal runs: times and rates. The caller
 * frees the text. */
char *tiny_numbers (const char *out);
