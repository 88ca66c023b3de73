/* issue.h - fills the scripts of all ranks, unit by unit. */
#pragma once
#include "exec_gpu/machine.h"

gboolean gpu_issue_all (struct gpu_machine *m, GError **error);
