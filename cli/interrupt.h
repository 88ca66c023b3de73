/* interrupt.h - ctrl-C in commands that print what they have found so far. */
#pragma once
#include <glib.h>
#include <signal.h>

/* Status of a command that ctrl-C ended, as shells report it. */
enum { WEFT_CLI_EXIT_BY_SIGINT = 128 + SIGINT };

/* From now on the first ctrl-C makes weft_cli_is_interrupted() return TRUE, in this process and in
 * the processes that it starts later by fork(); the second one ends the process. */
void weft_cli_catch_interrupt (void);

/* For `stop` of struct weft_search_options; `user` is not used. */
gboolean weft_cli_is_interrupted (void *user);
