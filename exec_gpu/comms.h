/* comms.h - communicators of ranks with a GPU each. */
#pragma once
#include "exec_gpu/machine.h"

gboolean gpu_comms_open (struct gpu_machine *m, GError **error);
void gpu_comms_close (struct gpu_machine *m);

/* The reduction that divides by dim[1] of a shape, for a communicator. */
gboolean gpu_comms_scaled (struct gpu_rank *r, weft_gpu_comm *comm, const struct weft_shape *shape,
                           int *out, GError **error);
