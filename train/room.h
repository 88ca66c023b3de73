/* room.h - whether real numbers of a plan have room. */
#pragma once
#include "core/plan/plan.h"

/* Before anything is allocated: the memory of a rank and of its host as the topology has them. */
gboolean weft_room_check_plan (const weft_plan *plan, GError **error);

/* Besides, that of this machine, which all ranks share. */
gboolean weft_room_check (const weft_plan *plan, GError **error);
