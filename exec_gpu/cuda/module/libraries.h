/* libraries.h - lists the NVIDIA libraries that the module uses, with versions and paths, because
 * several versions may be installed and the loader chooses one.  Also looks for cuDNN and CUPTI,
 * which the module loads only for jobs that need them. */
#pragma once
#include "exec_gpu/calls.h"

/* The call `libraries` of exec_gpu/calls.h.  Texts are valid during take(). */
void weft_cuda_libraries (void *self, weft_gpu_take_library take, void *user);
