/* trainer.h - the loop: tokens in, steps, evaluation, checkpoints, lines out. */
#pragma once
#include "core/exec/exec.h"

struct weft_trainer_options {
  const char *data;                                     /* token file (tokens.h) */
  uint64_t steps;                                       /* optimizer steps in all */
  uint64_t seed;
  gboolean seed_given;                                  /* by the user: a checkpoint must agree */
  double lr, min_lr;                                    /* peak, and where the cosine ends */
  double beta1, beta2, epsilon, weight_decay;
  uint64_t warmup, decay_steps;                         /* where lr, where min_lr is reached */
  double eval_share;                                    /* of the sequences: the last ones */
  uint64_t eval_interval, eval_batches;                 /* 0: never; most global batches a time */
  gboolean shuffle;
  const char *save, *load;                              /* checkpoint directories; NULL: none */
  uint64_t save_interval;
  uint32_t keep;
  const char *init_safetensors, *export_safetensors, *dump_gradients; /* NULL: none */
  struct weft_exec_options exec;                        /* control is the trainer's own */
};

/* ------------------------------------------------------------------- learning_rate.c */

/* Linear to lr over the warm-up, then half a cosine down to min_lr at `decay_steps`, and min_lr
 * from there on (Loshchilov and Hutter 2017, section 3; the schedule of GPT-3, arXiv 2005.14165
 * appendix B).  step counts from 1.  `steps` has no part in it: a run of 50 steps that goes on to
 * 100 gives the numbers of one of 100. */
double weft_trainer_lr (const struct weft_trainer_options *options, uint64_t step);

/* The peak of published runs for a model of this size. */
double weft_trainer_default_lr (uint64_t parameters);

/* Steps in which a model of this size sees the tokens that use computation best: 20 for each
 * parameter (Hoffmann et al. 2022, arXiv 2203.15556, table 3). */
uint64_t weft_trainer_default_decay_steps (uint64_t parameters, uint64_t tokens_per_step);

/* ---------------------------------------------------------------------- the loop */

/* Steps in a row without an update or a finite loss after which the loop gives up; those that a
 * dynamic loss scale answers by a smaller one are not counted.  A gradient that
 * is not finite shows in its norm, and nothing is updated.  With clip_grad 0 nobody measures a norm:
 * the update spoils weights and moments, every loss from then on is not finite, and no checkpoint is
 * written over good ones. */
#define WEFT_TRAINER_MOST_SKIPS 10

struct weft_trainer_line {
  uint64_t step, steps;
  double loss, mtp_loss, grad_norm, lr, seconds, tokens_per_s, mfu;
  double loss_scale;  /* 0: the loss is not scaled */
  uint64_t peak_bytes;
  gboolean skipped;   /* nothing was updated: the gradient norm was not finite */
  gboolean evaluated; /* loss is of the evaluation split; the rest of the step is not set */
};

struct weft_trainer_result {
  uint64_t steps, skipped; /* of all runs together */
  double final_loss;       /* NaN when no step was left to run */
  uint32_t n_roles;
  uint64_t *planned, *allocated; /* device bytes by role; caller frees */
  gboolean interrupted;          /* SIGTERM or SIGINT: saved, when there is where to */
  weft_timeline *timeline;       /* of the last step, NULL without one; caller owns */
};
void weft_trainer_result_clear (struct weft_trainer_result *result);

struct weft_trainer_sink {
  void (*line) (void *user, const struct weft_trainer_line *line);
  void (*say) (void *user, const char *message); /* "resumed from ...": for people */
  void *user;
};

/* Blocks SIGTERM and SIGINT in this thread (and those the executor starts) while it runs, and looks
 * for them between steps.  With --load the seed and the place in the data are the checkpoint's.
 * Tokens that cannot be read end the run with an error, after a checkpoint of the steps before. */
gboolean weft_trainer_run (const weft_plan *plan, const struct weft_exec_ops *ops,
                           const struct weft_trainer_options *options,
                           const struct weft_trainer_sink *sink,
                           struct weft_trainer_result *result, GError **error);
