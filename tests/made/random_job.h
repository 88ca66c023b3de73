/* random_job.h - jobs for tests, from text or at random.
 *
 * The text has the flags of the command line without dashes: "model=llama-nano gpus=8". A random
 * job is such a text, too, so a failing test prints what to pass to `weft plan`. */
#pragma once
#include "core/plan/plan.h"

/* FALSE with the message a user would get: an unknown word, or a broken rule. */
gboolean weft_test_job (const char *words, struct weft_job *job, GError **error);

/* The proved plan of this text (a printf format); fails the test if there is none. */
weft_plan *weft_test_plan (const char *words, ...) G_GNUC_PRINTF (1, 2);

/* The same with a cost table of these rows (struct weft_measurement). */
weft_plan *weft_test_plan_priced (const char *words, const GArray *rows);

/* Number of ops of all ranks. */
uint64_t weft_test_ops (const weft_plan *plan);

/* A small random job over everything that shapes a program: model, cluster, batch, pipeline,
 * data-parallel and recompute knobs. A few break a rule. The caller frees it. */
char *weft_random_job (GRand *rand);

/* Appends traits of other decoders to one job in three (random_traits.c).  What it draws follows
 * from the words, so that other jobs stay what they are. */
void weft_random_traits (GString *words);
