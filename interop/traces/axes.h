/* axes.h - the mesh axis of communication in a measured trace.
 *
 * A collective that PyTorch describes has the axis of the process group: of the kinds of groups of
 * the job (mesh.h) those remain that have the recorded ranks (or only their number, if a profile
 * has no ranks), then those whose axis the description of the group names, then those in which the
 * program runs this collective; of several the one with the nearest number of bytes.
 *
 * Without a description, the collectives of one kind on one stream belong to one communicator. They
 * have the axis in which the program runs this collective; of several axes, the one whose number of
 * calls is nearest. */
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
