/* driver.h - checks whether this machine has a GPU and a driver that can run the CUDA executor. */
#pragma once
#include <stdint.h>

/* NULL if there is a GPU and its driver is new enough; else a message with what was found and what
 * is needed. The text is static. */
const char *weft_driver_missing (void);

/* Which kernels with warpgroup products (enum weft_cuda_warpgroups) a value of WEFT_WARPGROUPS
 * allows. `0`: none; `producer`: attention with a producer warp wherever it takes the shape,
 * without measuring; other values and NULL: all, if measuring chooses them. */
uint8_t weft_driver_warpgroups_named (const char *text);

/* `most`, if the current device has compute capability 9.0; else none. */
uint8_t weft_driver_warpgroups (uint8_t most);
