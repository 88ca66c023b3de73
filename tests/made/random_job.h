/* random_job.h - jobs for tests, from text or at random.
 *
 * The text consists of flags without dashes: "model=llama-nano gpus=8". A random job is such a text
 * too, so a failing test prints what to pass to `weft plan`. */
#pragma once
#include "core/plan/plan.h"

/* Parses and checks a job. Returns FALSE for an unknown word or a broken rule, with the error that
 * a user would get. Fails the test after 20,000 refused jobs in a row, because a test that draws
 * jobs until one is legal would never end. */
gboolean weft_test_job (const char *words, struct weft_job *job, GError **error);

/* Returns the checked plan of this text (a printf format). Fails the test if the job is refused.
 * The caller frees the plan. */
weft_plan *weft_test_plan (const char *words, ...) G_GNUC_PRINTF (1, 2);

/* Returns the plan of a job given as text, priced by a cost table with these rows (struct
 * weft_measurement). The caller frees the plan. */
weft_plan *weft_test_plan_priced (const char *words, const GArray *rows);

/* Returns the number of ops of a step, over all ranks. */
uint64_t weft_test_ops (const weft_plan *plan);

/* Draws a small job with random model, cluster, batch size, and pipeline, data-parallel and
 * recompute knobs. A few jobs break a rule. The caller frees the text. */
char *weft_random_job (GRand *rand);

/* Appends features of decoders such as Gemma 2, OLMo 2 and BLOOM (random_traits.c) to one in three
 * of the jobs that support them. A hash of `words` is the seed, so that the draws of
 * weft_random_job() stay as they were. */
void weft_random_traits (GString *words);
