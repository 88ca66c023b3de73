/* command.h - runs weft as a shell does: exit status, stdout and stderr. */
#pragma once

struct answer {
  char *out, *err;
  int status; /* exit status */
};

/* Runs `weft` with these arguments, separated by single blanks, in the current folder. The caller
 * frees the answer. */
struct answer weft_test_answer (const char *words);
void weft_test_answer_free (struct answer *answer);

/* Runs the command and fails unless it is refused: with this exit status, with nothing on stdout,
 * and with a message that begins with "weft: " and contains `part`. */
void weft_test_refused (const char *words, int status, const char *part);
