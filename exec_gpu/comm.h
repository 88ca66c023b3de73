/* comm.h - the communicator of an op, and errors of communicators. */
#pragma once
#include "exec_gpu/machine.h"

/* Transfers between stages that are posted one by one, and may overtake each other: two neighbours
 * have a communicator for each way. */
gboolean gpu_comm_is_pair (const struct gpu_machine *m, const struct weft_op *row);

weft_gpu_comm *gpu_comm_of (const struct gpu_rank *r, const struct weft_op *row);
uint32_t gpu_comm_peer (const struct gpu_rank *r, const struct weft_op *row); /* of a transfer */

/* FALSE: an error has occurred in a communicator since it was opened. */
gboolean gpu_comm_check_all (struct gpu_machine *m, GError **error);
