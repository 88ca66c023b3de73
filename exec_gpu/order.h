/* order.h - the launches of a rank, and the waits between them. */
#pragma once
#include "exec_gpu/machine.h"

void gpu_order_open (struct gpu_rank *r);
void gpu_order_close (struct gpu_rank *r);

/* Finds the op at the other end of a transfer, and the number *row of the peer's rank. FALSE: no op
 * matches. */
gboolean gpu_transfer_peer (const struct gpu_rank *r, uint32_t op, uint32_t *row, uint32_t *peer);
