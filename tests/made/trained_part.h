/* trained_part.h - one process of a training run, for tests that start themselves several times. */
#pragma once
#include "launch/environment.h"
#include "train/trainer.h"

struct trained_part {
  const char *words, *data; /* of the job; tokens */
  const char *folder; /* of checkpoints, after every second step; NULL: none */
  const char *files; /* what paths begin with: of the weights at the end ("-weights"), of the first
                      * gradients ("-gradients"), of the last step ("-times.json"); NULL: none */
  uint64_t steps;
  gboolean resumes;
  const struct weft_exec_ops *ops;
  struct weft_exec_options exec;
  /* Where there are others: called when they have been met.  May be NULL. */
  void (*met) (const struct weft_launch *launch, struct weft_rendezvous *peers);
};

/* Trains alone, or with the others that the variables of this process tell of.  stdout: of every
 * step its number and the bits of its loss as hexadecimal digits, "e" after the number of an
 * evaluation; stderr: why not.  0, or 75 when it was asked to stop; 1: it failed; 2: there is
 * nobody; 3: it has not allocated what was planned. */
int trained_part_alone (const struct trained_part *part);
int trained_part_together (const struct trained_part *part);

/* The losses of such lines.  Caller frees. */
GArray *trained_part_losses (const char *out);
