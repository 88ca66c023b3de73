/* lifetimes.h - when the buffers of a program are in use, in program order and in time.
 *
 * The earliest schedule of a role: lanes run in order, ops wait for their dependencies, and no op
 * waits for other ranks. */
#pragma once
#include "core/program/program.h"

/* Whether a buffer needs an offset of its own: it is no view, has bytes, is used, and does not live
 * through the whole step. */
gboolean weft_buf_is_placed (const struct weft_buf *b);
/* Builds a linked list of placed buffers for each op. If `by_last` is FALSE, the list of an op
 * contains the buffers whose first use is the op; if TRUE, those whose last use is the op. head[op]
 * [n_op + 1] is the first buffer of the list or WEFT_NO_OP, and next[buffer] [n_buf + 1] links the
 * others. */
void weft_chain_buffers (const weft_program *p, gboolean by_last, uint32_t *head, uint32_t *next);
/* Computes begin and end of every op in the earliest schedule, in seconds. start, end: [n_op].
 * `seconds`: time of each op; NULL: one second. */
void weft_earliest_schedule (const weft_program *p, const double *seconds, double *start,
                             double *end);
/* Computes the largest number of bytes of each pool that are in use at one time of such a schedule,
 * with the permanent buffers. */
void weft_bytes_in_use (const weft_program *p, const double *start, const double *end,
                        uint64_t used[WEFT_N_POOL]);
