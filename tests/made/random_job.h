/* random_job.h - jobs for tests: from words, or at random.
 *
 * Words are the flags of the command line without their dashes: "model=llama-nano gpus=8".  A
 * random job is such words too, so a test that fails prints what to give to `weft plan`. */
#pragma once
#include "core/plan/plan.h"

/* FALSE with the message a user would get: a word is unknown, or the job breaks a rule. */
gboolean weft_test_job (const char *words, struct weft_job *job, GError **error);

/* The proved plan of these words, a printf format; fails the test when there is none. */
weft_plan *weft_test_plan (const char *words, ...) G_GNUC_PRINTF (1, 2);

/* The same, priced by a file that holds these rows (struct weft_measurement). */
weft_plan *weft_test_plan_priced (const char *words, const GArray *rows);

/* Ops of all ranks. */
uint64_t weft_test_ops (const weft_plan *plan);

/* Words of a small job over everything a program is built from: model shapes, clusters, batches,
 * pipeline, data parallel and recompute knobs.  A few break a rule.  Caller frees. */
char *weft_random_job (GRand *rand);

/* Appends traits of other decoders to one job in three (random_traits.c).  What it draws follows
 * from the words, so that other jobs stay what they are. */
void weft_random_traits (GString *words);
