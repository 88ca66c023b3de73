/* trained_part.h - one process of a training run, for tests that start their own program several
 * times. */
#pragma once
#include "launch/environment.h"
#include "train/trainer.h"

struct trained_part {
  const char *words, *data; /* the job, as text of random_job.h; path of the token file */
  /* folder for checkpoints, saved after every second step; NULL: no checkpoints */
  const char *folder;
  /* prefix of the output files: weights at the end ("-weights"), first gradients ("-gradients"),
   * last step ("-times.json"); NULL: no files */
  const char *files;
  uint64_t steps;
  gboolean resumes;
  const struct weft_exec_ops *ops;
  struct weft_exec_options exec;
  /* Called when this process has opened the rendezvous with the other processes. May be NULL. */
  void (*met) (const struct weft_launch *launch, struct weft_rendezvous *peers);
};

/* Trains in this process. Prints to stdout, for each step, its number and the bits of its loss in
 * hexadecimal; evaluations have an "e" after the number. Prints errors to stderr. Returns an exit
 * status: 0; 75 if a signal stopped the run; 1 on failure; 3 if allocated and planned bytes
 * differ. */
int trained_part_alone (const struct trained_part *part);

/* Like trained_part_alone(), but together with the other processes that the variables of the
 * launcher describe. Also returns 2 if these variables are invalid or the rendezvous fails. */
int trained_part_together (const struct trained_part *part);

/* Parses the stdout of trained_part_alone(). Returns the losses; the caller frees the array. */
GArray *trained_part_losses (const char *out);
