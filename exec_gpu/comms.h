/* comms.h - communicators of ranks with a GPU each. */
#pragma once
#include "exec_gpu/machine.h"

/* Opens all communicators and memory windows, and exchanges a byte between neighbouring stages to
 * connect them. Does nothing for ranks that share a GPU. */
gboolean gpu_comms_open (struct gpu_machine *m, GError **error);
void gpu_comms_close (struct gpu_machine *m);

/* Finds or creates the reduction of a communicator that divides by dim[1] of a shape. *out is its
 * number for weft_gpu_collective.scaled. */
gboolean gpu_comms_scaled (struct gpu_rank *r, weft_gpu_comm *comm, const struct weft_shape *shape,
                           int *out, GError **error);
