/* axes.h - the mesh axis of communication in a measured trace.
 *
 * If PyTorch has recorded the process group of a collective, the axis is that of a kind of group of
 * the job (mesh.h). Candidates are ruled out one after the other: groups with other ranks (or, if
 * the profile has no ranks, with another number of ranks), groups whose axis is not the one in the
 * description of the process group, and groups in which the program does not run this collective.
 * Of several remaining groups, the one with the nearest number of bytes is taken.
 *
 * If no process group is recorded, all collectives of one kind on one stream are taken to belong to
 * one communicator. Its axis is the one in which the program runs this collective; of several axes,
 * the one with the nearest number of calls. */
#pragma once
#include "interop/traces/trace.h"

/* The collectives of all programs of a plan. */
typedef struct weft_axes weft_axes;
weft_axes *weft_axes_new (const weft_plan *plan);
void weft_axes_free (weft_axes *axes);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_axes, weft_axes_free)

/* Bytes of the larger side of a collective: elements times the size of their dtype; 0: not
 * recorded. */
double weft_axes_bytes (const struct weft_trace_comm *comm);

/* Sets the axes of all communication whose process group has a description that names an axis. */
void weft_axes_set_described (const weft_axes *axes, weft_trace *trace);

/* Sets the axes of the communication without a description on one GPU, by its calls between `begin`
 * and `end`. Returns the seconds of this communication whose axis was chosen by the number of
 * calls. */
double weft_axes_set_counted (const weft_axes *axes, struct weft_trace_rank *rank, uint32_t role,
                              int64_t begin, int64_t end);
