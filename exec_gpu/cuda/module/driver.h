/* driver.h - whether this machine can run the module at all. */
#pragma once

/* NULL where there is a GPU with a driver that is new enough; else what was found and wanted, which
 * lives for ever. */
const char *weft_driver_missing (void);
