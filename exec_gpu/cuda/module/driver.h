/* driver.h - checks whether this machine has a GPU and a driver that can run the CUDA executor. */
#pragma once

/* NULL if there is a GPU and its driver is new enough; else a message with what was found and what
 * is needed. The text is static. */
const char *weft_driver_missing (void);
