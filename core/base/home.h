/* home.h - where this Weft was put. */
#pragma once

/* The folder under which it was installed, which has share/weft; NULL when it was only built, and its
 * data is that of the source folder.  Found from where the code lies, so an installed tree may be
 * moved.  Never freed. */
const char *weft_home_prefix (void);
