/* links.h - programs that do nothing but communicate, one op after the other, to be timed.
 *
 * Each op comes WEFT_LINKS_TIMES times in a row, `micro` counting from 0; the first warms up. */
#pragma once
#include "core/exec/exec.h"

#define WEFT_LINKS_TIMES 5

/* Every collective and transfer that occurs in a plan, once each, on the same mesh. */
weft_plan *weft_links_of_plan (const weft_plan *plan, GError **error);

/* Collectives of one group of so many ranks, and transfers both ways between two stages: fp32 of
 * 1 KiB to 64 MiB.  Cluster and reduction order are the job's. */
weft_plan *weft_links_of_group (const struct weft_job *job, uint32_t ranks, GError **error);
weft_plan *weft_links_of_stages (const struct weft_job *job, GError **error);

/* Copies between one rank and its host, both ways, in fp32 and bf16. */
weft_plan *weft_links_of_host (const struct weft_job *job, GError **error);

/* Random numbers in the data of all ranks of an open executor: zeros may move quicker. */
void weft_links_fill (weft_exec *x);
