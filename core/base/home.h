/* home.h - finds the folder in which Weft is installed. */
#pragma once

/* The prefix of the installation, which contains share/weft; NULL for a build that is not
 * installed, which uses the data of the source folder.  The prefix is derived from the location of
 * the code, so an installed tree may be moved.  Never freed. */
const char *weft_home_prefix (void);
