/* driver.h - checks whether this machine has a GPU and a driver that can run the CUDA executor. */
#pragma once
#include <glib.h>
#include <stdint.h>

/* NULL if there is a GPU and its driver is new enough; else a message with what was found and what
 * is needed. The text is static. */
const char *weft_driver_missing (void);

/* Returns whether the driver must compile the kernels for the current device, because the module is
 * the quick one (module.cmake) and the device no H100 or H200; prints a message if so. */
gboolean weft_driver_compiles (gboolean quick);

/* Returns which kernels with warpgroup products a value of the environment variable WEFT_WARPGROUPS
 * allows (enum weft_cuda_warpgroups). `0`: none. `producer`: attention, and matmuls with swiglu,
 * with a producer warp for every shape that they support, without measuring. Other values and NULL:
 * all; measurements choose. */
uint8_t weft_driver_warpgroups_named (const char *text);

/* Returns `most` if the current device has compute capability 9.0, else WEFT_NO_WARPGROUPS. */
uint8_t weft_driver_warpgroups (uint8_t most);
