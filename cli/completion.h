/* completion.h - the forms of the pages for --help: for people, for man, and as a list of flags for
 * the completion of a shell. */
#pragma once
#include "cli/cli.h"

enum weft_cli_form { WEFT_CLI_FORM_TEXT, WEFT_CLI_FORM_MAN, WEFT_CLI_FORM_FLAGS };

/* The form in which `weft COMMAND --help` prints; set by `weft completion`. */
extern enum weft_cli_form weft_cli_form;

/* Prints the page of a command for man or for the completion of a shell. `job` is the text that
 * describes the operand JOB; NULL: the command has no such operand. */
void weft_cli_print_form (const struct weft_cli_page *page, const char *job);

/* Flag number `i` of a page; NULL after the last flag. */
const struct weft_cli_flag *weft_cli_flag_at (const struct weft_cli_page *page, unsigned i);
