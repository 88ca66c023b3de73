/* issue.h - fills the call lists of all ranks, one launch after the other. */
#pragma once
#include "exec_gpu/machine.h"

gboolean gpu_issue_all (struct gpu_machine *m, GError **error);
