/* comm.h - finds the communicator of an op, and checks communicators for errors. */
#pragma once
#include "exec_gpu/machine.h"

/* Whether an op is a transfer between stages that is launched alone, not in a group. Such transfers
 * can run in another order than they were issued in; two neighbouring stages therefore have one
 * communicator for each direction. */
gboolean gpu_comm_is_pair (const struct gpu_machine *m, const struct weft_op *row);

/* The communicator of an op; NULL: the op needs none. */
weft_gpu_comm *gpu_comm_of (const struct gpu_rank *r, const struct weft_op *row);

/* The peer of a transfer, as its rank in the communicator. */
uint32_t gpu_comm_peer (const struct gpu_rank *r, const struct weft_op *row);

/* Checks all communicators for errors. FALSE: a communicator has reported an error. */
gboolean gpu_comm_check_all (struct gpu_machine *m, GError **error);
