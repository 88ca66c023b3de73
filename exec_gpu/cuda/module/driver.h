/* driver.h - checks whether this machine can run the module. */
#pragma once

/* NULL if there is a GPU and its driver is new enough; else a message with what was found and what
 * is needed. The text is static. */
const char *weft_driver_missing (void);
