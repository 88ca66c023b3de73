/* room.h - whether real numbers of a plan have room. */
#pragma once
#include "core/plan/plan.h"

/* Before anything is allocated: the memory of a rank as the topology has it, and that of this machine,
 * which all ranks share. */
gboolean weft_room_check (const weft_plan *plan, GError **error);
