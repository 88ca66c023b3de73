/* trained_part.h - one process of a training run, for tests that start themselves several times. */
#pragma once
#include "launch/environment.h"
#include "train/trainer.h"

struct trained_part {
  const char *words, *data; /* the job as text; a token file */
  const char *folder; /* for checkpoints, after every second step; NULL: none */
  const char *files; /* prefix of output paths: weights at the end ("-weights"), first gradients
                      * ("-gradients"), last step ("-times.json"); NULL: none */
  uint64_t steps;
  gboolean resumes;
  const struct weft_exec_ops *ops;
  struct weft_exec_options exec;
  /* Called when the rendezvous with other processes is open. May be NULL. */
  void (*met) (const struct weft_launch *launch, struct weft_rendezvous *peers);
};

/* Trains alone, or with the other processes given by the launcher's variables. stdout: per step its
 * number and the bits of its loss in hexadecimal, "e" after the number of an evaluation; stderr:
 * errors. Returns 0; 75 when asked to stop; 1 on failure; 2 without other processes; 3 if allocated
 * and planned bytes differ. */
int trained_part_alone (const struct trained_part *part);
int trained_part_together (const struct trained_part *part);

/* The losses in such output. The caller frees the array. */
GArray *trained_part_losses (const char *out);
