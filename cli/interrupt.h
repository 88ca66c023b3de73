/* interrupt.h - ctrl-C in commands that then print what they have found so far. */
#pragma once
#include <glib.h>
#include <signal.h>

/* Exit status of a command that ctrl-C ended, the same as shells use. */
enum { WEFT_CLI_EXIT_BY_SIGINT = 128 + SIGINT };

/* From now on the first ctrl-C makes weft_cli_is_interrupted() return TRUE, in this process and in
 * the processes that it starts later by fork(). The second ctrl-C ends the process. */
void weft_cli_catch_interrupt (void);

/* Whether ctrl-C was pressed: a function for `stop` of struct weft_search_options. `user` is not
 * used. */
gboolean weft_cli_is_interrupted (void *user);
